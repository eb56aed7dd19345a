//! The matrix products of a model, whose bits depend on nothing: not on the threads, the CPU or how the work is divided.
//!
//! Every number of a product is one chain of fused multiply-adds in `f32`, in the order of the inner dimension. Vectors
//! hold numbers of different chains, so the width of the registers does not matter. All matrices are row-major.

use crate::kernels::{Element, Line};

/// Of `y = x w^T`: `x` is (rows, inner), `w` (columns, inner), `y` (rows, columns).
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub rows: usize,
    pub inner: usize,
    pub columns: usize,
}

/// Lines of scratch memory that any of the three products needs.
pub fn scratch(_size: Size, _threads: usize) -> usize {
    0
}

/// `y = x w^T`, plus `added` if there is one.
pub fn forward<T: Element>(
    x: &[T],
    w: &[T],
    added: Option<&[T]>,
    y: &mut [T],
    size: Size,
    _scratch: &mut [Line],
    _threads: usize,
) {
    for row in 0..size.rows {
        for column in 0..size.columns {
            let mut sum = 0.0_f32;
            for k in 0..size.inner {
                sum = x[row * size.inner + k].widen().mul_add(w[column * size.inner + k].widen(), sum);
            }
            let at = row * size.columns + column;
            y[at] = T::narrow(sum + added.map_or(0.0, |added| added[at].widen()));
        }
    }
}

/// `dx = dy w`: the gradient of `x` from that of `y`.
pub fn backward<T: Element>(
    dy: &[T],
    w: &[T],
    dx: &mut [T],
    size: Size,
    _scratch: &mut [Line],
    _threads: usize,
) {
    for row in 0..size.rows {
        for k in 0..size.inner {
            let mut sum = 0.0_f32;
            for column in 0..size.columns {
                sum =
                    dy[row * size.columns + column].widen().mul_add(w[column * size.inner + k].widen(), sum);
            }
            dx[row * size.inner + k] = T::narrow(sum);
        }
    }
}

/// `grad += dy^T x`: the gradient of `w`. The chains go on from what `grad` has, so the result is the same however the
/// rows are divided among calls.
pub fn accumulate<T: Element>(
    dy: &[T],
    x: &[T],
    grad: &mut [f32],
    size: Size,
    _scratch: &mut [Line],
    _threads: usize,
) {
    for row in 0..size.rows {
        for column in 0..size.columns {
            let factor = dy[row * size.columns + column].widen();
            for k in 0..size.inner {
                let sum = &mut grad[column * size.inner + k];
                *sum = factor.mul_add(x[row * size.inner + k].widen(), *sum);
            }
        }
    }
}
