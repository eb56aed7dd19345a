//! The matrix products of a model, whose bits depend on nothing: not on the threads, the CPU or how the work is divided.
//!
//! Every number of a product is one chain of fused multiply-adds in `f32`, in the order of the inner dimension. Vectors
//! hold numbers of different chains, so the width of the registers does not matter. All matrices are row-major.
//!
//! If the operands are bf16, denormal numbers are 0 in such a chain, be they operands, sums or results of a step: this is
//! what the CPU's instructions for bf16 do, and all other code does the same.
//!
//! `step` has the instructions, `panel` copies operands to the order in which these need them and multiplies two panels,
//! `blocks` divides a product into parts that stay in the caches, `work` does them on threads.

mod blocks;
mod kind;
mod panel;
mod step;
mod work;

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;

use crate::kernels::{Bf16, Element, LANES, Line, Widest};
use blocks::{Blocks, most_scratch};
use kind::Kind;
use panel::Operand;
use work::{Result, Work};

/// Of `y = x w^T`: `x` is (rows, inner), `w` (columns, inner), `y` (rows, columns).
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub rows: usize,
    pub inner: usize,
    pub columns: usize,
}

impl Size {
    /// Of `dx = dy w`, as such a product.
    fn backward(self) -> Size {
        Size { rows: self.rows, inner: self.columns, columns: self.inner }
    }

    /// Of `grad = dy^T x`.
    fn accumulate(self) -> Size {
        Size { rows: self.columns, inner: self.rows, columns: self.inner }
    }
}

/// Lines of scratch memory that any of the three products needs, with so many rows or fewer.
pub fn scratch(size: Size, threads: usize) -> usize {
    let result = most_scratch(size, false, threads).max(most_scratch(size.backward(), false, threads));
    result.max(most_scratch(size.accumulate(), true, threads)).div_ceil(LANES)
}

/// Those of products of bf16 numbers, the widest in use.
pub fn vectors() -> Widest {
    Kind::best::<Bf16>().vectors()
}

/// `y = x w^T`, plus `added` if there is one.
pub fn forward<T: Element>(
    x: &[T],
    w: &[T],
    added: Option<&[T]>,
    y: &mut [T],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    forward_with(Kind::best::<T>(), x, w, added, y, size, scratch, threads);
}

/// `dx = dy w`: the gradient of `x` from that of `y`.
pub fn backward<T: Element>(
    dy: &[T],
    w: &[T],
    dx: &mut [T],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    backward_with(Kind::best::<T>(), dy, w, dx, size, scratch, threads);
}

/// `grad += dy^T x`: the gradient of `w`. The chains go on from what `grad` has, so the result is the same however the
/// rows are divided among calls.
pub fn accumulate<T: Element>(
    dy: &[T],
    x: &[T],
    grad: &mut [f32],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    accumulate_with(Kind::best::<T>(), dy, x, grad, size, scratch, threads);
}

#[allow(clippy::too_many_arguments)]
fn forward_with<T: Element>(
    kind: Kind,
    x: &[T],
    w: &[T],
    added: Option<&[T]>,
    y: &mut [T],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    assert!(x.len() == size.rows * size.inner && w.len() == size.columns * size.inner);
    assert!(y.len() == size.rows * size.columns && added.is_none_or(|added| added.len() == y.len()));
    let left = Operand { numbers: x, stride: size.inner, along: true, beyond: PLUS_ZERO };
    let right = Operand { numbers: w, stride: size.inner, along: true, beyond: MINUS_ZERO };
    let result = Result { start: y.as_mut_ptr(), added };
    multiply(kind, left, right, size, Some(result), None, scratch, threads);
}

fn backward_with<T: Element>(
    kind: Kind,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    assert!(dy.len() == size.rows * size.columns && w.len() == size.columns * size.inner);
    assert!(dx.len() == size.rows * size.inner);
    let left = Operand { numbers: dy, stride: size.columns, along: true, beyond: PLUS_ZERO };
    let right = Operand { numbers: w, stride: size.inner, along: false, beyond: MINUS_ZERO };
    let result = Result { start: dx.as_mut_ptr(), added: None };
    multiply(kind, left, right, size.backward(), Some(result), None, scratch, threads);
}

fn accumulate_with<T: Element>(
    kind: Kind,
    dy: &[T],
    x: &[T],
    grad: &mut [f32],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    assert!(dy.len() == size.rows * size.columns && x.len() == size.rows * size.inner);
    assert!(grad.len() == size.columns * size.inner);
    let left = Operand { numbers: dy, stride: size.columns, along: false, beyond: PLUS_ZERO };
    let right = Operand { numbers: x, stride: size.inner, along: false, beyond: MINUS_ZERO };
    let grad = grad.as_mut_ptr();
    multiply(kind, left, right, size.accumulate(), None, Some(grad), scratch, threads);
}

/// The bits of zeros in bf16.
const PLUS_ZERO: u16 = 0;
const MINUS_ZERO: u16 = 0x8000;

/// The result or `grad`, the one that there is, has the size of the product.
#[allow(clippy::too_many_arguments)]
fn multiply<T: Element>(
    kind: Kind,
    left: Operand<T>,
    right: Operand<T>,
    size: Size,
    result: Option<Result<T>>,
    grad: Option<*mut f32>,
    scratch: &mut [Line],
    threads: usize,
) {
    if size.rows == 0 || size.columns == 0 || (size.inner == 0 && grad.is_some()) {
        return;
    }
    let in_place = grad.is_some() || size_of::<T>() == size_of::<f32>();
    let blocks = Blocks::new(size, size_of::<T>(), kind.numbers(), in_place, threads);
    // SAFETY: callers have checked the sizes.
    let work = unsafe { Work::new(left, right, blocks, result, grad, scratch) };
    kind.run(&work);
}
