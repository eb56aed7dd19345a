//! The kernels of a training step, on memory that torch owns.
//!
//! Operands are addresses: unwrapping a tensor object each time would take longer than the small kernels run. The only
//! caller, `engines/torch/kernels/native.py`, guarantees them, types and sizes; labels and positions are checked here.

use super::guarded;
use crate::kernels::{self, BadLabel, BadPosition, Bf16, Element, Heads, Mask, Rotary};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// # Safety
/// `address` has `count` numbers that nobody writes during the call. An empty tensor's address is 0.
pub(super) unsafe fn read<'a, T>(address: usize, count: usize) -> &'a [T] {
    // SAFETY: guaranteed by the caller.
    if count == 0 { &[] } else { unsafe { from_raw_parts(address as *const T, count) } }
}

/// # Safety
/// `address` has `count` numbers that nobody else reads or writes during the call.
pub(super) unsafe fn write<'a, T>(address: usize, count: usize) -> &'a mut [T] {
    // SAFETY: guaranteed by the caller.
    if count == 0 { &mut [] } else { unsafe { from_raw_parts_mut(address as *mut T, count) } }
}

/// Calls a generic function for bf16 or fp32.
macro_rules! for_element {
    ($py:ident, $bf16:ident, $function:ident$(::<$other:ty>)?($($argument:expr),*)) => {
        $py.detach(|| {
            // SAFETY: guaranteed by the caller, see the top of the file.
            unsafe {
                match $bf16 {
                    true => $function::<Bf16$(, $other)?>($($argument),*),
                    false => $function::<f32$(, $other)?>($($argument),*),
                }
            }
        })
    };
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_norm(
    py: Python<'_>,
    bf16: bool,
    x: usize,
    gain: usize,
    eps: f32,
    out: usize,
    rows: usize,
    width: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [x, gain, out]: [usize; 3],
            eps: f32,
            [rows, width]: [usize; 2],
            threads: usize,
        ) {
            // SAFETY: guaranteed by the caller, see the top of the file.
            let (x, gain, out) =
                unsafe { (read::<T>(x, rows * width), read(gain, width), write(out, rows * width)) };
            kernels::norm(x, gain, eps, out, threads);
        }
        for_element!(py, bf16, call([x, gain, out], eps, [rows, width], threads));
        Ok(())
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_norm_backward(
    py: Python<'_>,
    bf16: bool,
    dy: usize,
    x: usize,
    gain: usize,
    eps: f32,
    gain_grad: usize,
    dx: usize,
    rows: usize,
    width: usize,
    unit: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [dy, x, gain, gain_grad, dx]: [usize; 5],
            eps: f32,
            [rows, width, unit]: [usize; 3],
            threads: usize,
        ) {
            // SAFETY: guaranteed by the caller, see the top of the file.
            unsafe {
                let (dy, x) = (read::<T>(dy, rows * width), read(x, rows * width));
                let (gain, gain_grad) = (read(gain, width), write(gain_grad, width));
                let dx = write(dx, rows * width);
                kernels::norm_backward(dy, x, gain, eps, gain_grad, dx, unit, threads);
            }
        }
        for_element!(py, bf16, call([dy, x, gain, gain_grad, dx], eps, [rows, width, unit], threads));
        Ok(())
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_rotate(
    py: Python<'_>,
    bf16: bool,
    matrix: usize,
    cos: usize,
    sin: usize,
    positions: usize,
    wide_positions: bool,
    rows: usize,
    width: usize,
    context: usize,
    half: usize,
    heads: usize,
    inverse: bool,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element, P: Copy + Into<i64> + Sync>(
            [matrix, cos, sin, positions]: [usize; 4],
            [rows, width, context, half, heads]: [usize; 5],
            inverse: bool,
            threads: usize,
        ) -> Result<(), BadPosition> {
            // SAFETY: guaranteed by the caller, see the top of the file.
            let (matrix, cos, sin, positions) = unsafe {
                let (cos, sin) = (read(cos, context * half), read(sin, context * half));
                (write::<T>(matrix, rows * width), cos, sin, read::<P>(positions, rows))
            };
            kernels::rotate(matrix, &Rotary { cos, sin, half, positions, heads, inverse }, threads)
        }
        let (tensors, sizes) = ([matrix, cos, sin, positions], [rows, width, context, half, heads]);
        let done = match wide_positions {
            true => for_element!(py, bf16, call::<i64>(tensors, sizes, inverse, threads)),
            false => for_element!(py, bf16, call::<i32>(tensors, sizes, inverse, threads)),
        };
        done.map_err(|bad| out_of_context(bad, context))
    })
}

fn out_of_context(BadPosition(position): BadPosition, context: usize) -> PyErr {
    PyIndexError::new_err(format!("position {position} is outside the context of {context}"))
}

/// # Safety
/// As `read`. `sizes` are rows, columns of a row, positions in the tables, head width, query heads, key heads.
unsafe fn heads<'a>(
    [query_gain, key_gain, cos, sin, positions]: [usize; 5],
    eps: f32,
    [rows, _, context, head_width, heads, kv_heads]: [usize; 6],
) -> Heads<'a> {
    // SAFETY: by the caller's word.
    unsafe {
        Heads {
            query_gain: read(query_gain, head_width),
            key_gain: read(key_gain, head_width),
            eps,
            cos: read(cos, context * head_width / 2),
            sin: read(sin, context * head_width / 2),
            positions: read(positions, rows),
            heads,
            kv_heads,
        }
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_qk_norm(
    py: Python<'_>,
    bf16: bool,
    qkv: usize,
    out: usize,
    tables: [usize; 5],
    eps: f32,
    sizes: [usize; 6],
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [qkv, out]: [usize; 2],
            tables: [usize; 5],
            eps: f32,
            sizes: [usize; 6],
            threads: usize,
        ) -> Result<(), BadPosition> {
            let [rows, columns, _, head_width, heads_, kv_heads] = sizes;
            // SAFETY: by the module's word.
            unsafe {
                let out = write::<T>(out, rows * (heads_ + kv_heads) * head_width);
                kernels::qk_norm(read(qkv, rows * columns), &heads(tables, eps, sizes), out, threads)
            }
        }
        for_element!(py, bf16, call([qkv, out], tables, eps, sizes, threads))
            .map_err(|bad| out_of_context(bad, sizes[2]))
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_qk_norm_backward(
    py: Python<'_>,
    bf16: bool,
    grad: usize,
    qkv: usize,
    tables: [usize; 5],
    gain_grads: [usize; 2],
    eps: f32,
    sizes: [usize; 6],
    unit: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [grad, qkv]: [usize; 2],
            tables: [usize; 5],
            gain_grads: [usize; 2],
            eps: f32,
            sizes: [usize; 6],
            [unit, threads]: [usize; 2],
        ) -> Result<(), BadPosition> {
            let [rows, columns, _, head_width, ..] = sizes;
            // SAFETY: by the module's word.
            unsafe {
                let (grad, qkv) = (write::<T>(grad, rows * columns), read(qkv, rows * columns));
                let gain_grads = gain_grads.map(|address| write(address, head_width));
                kernels::qk_norm_backward(grad, qkv, &heads(tables, eps, sizes), gain_grads, unit, threads)
            }
        }
        for_element!(py, bf16, call([grad, qkv], tables, gain_grads, eps, sizes, [unit, threads]))
            .map_err(|bad| out_of_context(bad, sizes[2]))
    })
}

#[pyfunction]
pub fn kernel_gate(
    py: Python<'_>,
    bf16: bool,
    gate_up: usize,
    out: usize,
    rows: usize,
    half: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>([gate_up, out]: [usize; 2], [rows, half]: [usize; 2], threads: usize) {
            // SAFETY: guaranteed by the caller, see the top of the file.
            let (gate_up, out) = unsafe { (read::<T>(gate_up, rows * 2 * half), write(out, rows * half)) };
            kernels::gate(gate_up, half, out, threads);
        }
        for_element!(py, bf16, call([gate_up, out], [rows, half], threads));
        Ok(())
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_gate_backward(
    py: Python<'_>,
    bf16: bool,
    gate_up: usize,
    d_act: usize,
    act: usize,
    rows: usize,
    half: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [gate_up, d_act, act]: [usize; 3],
            [rows, half]: [usize; 2],
            threads: usize,
        ) {
            // SAFETY: guaranteed by the caller, see the top of the file.
            unsafe {
                let (gate_up, act) = (write::<T>(gate_up, rows * 2 * half), write(act, rows * half));
                kernels::gate_backward(gate_up, read(d_act, rows * half), half, act, threads);
            }
        }
        for_element!(py, bf16, call([gate_up, d_act, act], [rows, half], threads));
        Ok(())
    })
}

/// With `adds` the mask is applied to `out` in place, and `x` added; else it is applied to `x`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_dropout(
    py: Python<'_>,
    bf16: bool,
    out: usize,
    x: usize,
    adds: bool,
    keys: [usize; 2],
    drops: (u32, u32, f32),
    rows: usize,
    width: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [out, x]: [usize; 2],
            adds: bool,
            mask: Mask<'_>,
            [rows, width]: [usize; 2],
            threads: usize,
        ) {
            // SAFETY: guaranteed by the caller, see the top of the file.
            let (out, x) = unsafe { (write::<T>(out, rows * width), read(x, rows * width)) };
            match adds {
                true => kernels::dropout_add(out, x, mask, width, threads),
                false => kernels::dropout(x, mask, width, out, threads),
            }
        }
        let ([keys, sequences], (place, threshold, scale)) = (keys, drops);
        // SAFETY: guaranteed by the caller, see the top of the file.
        let mask = Mask { keys: unsafe { read(keys, sequences) }, place, threshold, scale };
        for_element!(py, bf16, call([out, x], adds, mask, [rows, width], threads));
        Ok(())
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn kernel_cross_entropy(
    py: Python<'_>,
    bf16: bool,
    logits: usize,
    labels: usize,
    losses: usize,
    rows: usize,
    width: usize,
    vocab: usize,
    scale: f32,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>(
            [logits, labels, losses]: [usize; 3],
            [rows, width, vocab]: [usize; 3],
            scale: f32,
            threads: usize,
        ) -> Result<(), BadLabel> {
            // SAFETY: guaranteed by the caller, see the top of the file.
            unsafe {
                let (logits, losses) = (write::<T>(logits, rows * width), write(losses, rows));
                kernels::cross_entropy(logits, read(labels, rows), vocab, scale, losses, threads)
            }
        }
        for_element!(py, bf16, call([logits, labels, losses], [rows, width, vocab], scale, threads)).map_err(
            |BadLabel(label)| {
                PyIndexError::new_err(format!("label {label} is outside the vocabulary of {vocab}"))
            },
        )
    })
}

#[pyfunction]
pub fn kernel_accumulate(
    py: Python<'_>,
    bf16: bool,
    total: usize,
    part: usize,
    count: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        unsafe fn call<T: Element>([total, part]: [usize; 2], count: usize, threads: usize) {
            // SAFETY: guaranteed by the caller, see the top of the file.
            let (total, part) = unsafe { (write(total, count), read::<T>(part, count)) };
            kernels::accumulate(total, part, threads);
        }
        for_element!(py, bf16, call([total, part], count, threads));
        Ok(())
    })
}

#[pyfunction]
pub fn kernel_squares(
    py: Python<'_>,
    bf16: bool,
    numbers: usize,
    count: usize,
    threads: usize,
) -> PyResult<f64> {
    guarded(|| {
        unsafe fn call<T: Element>(numbers: usize, count: usize, threads: usize) -> f64 {
            // SAFETY: guaranteed by the caller, see the top of the file.
            kernels::squares(unsafe { read::<T>(numbers, count) }, threads)
        }
        Ok(for_element!(py, bf16, call(numbers, count, threads)))
    })
}
