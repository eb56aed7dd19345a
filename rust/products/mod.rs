//! The matrix products of a model, whose bits depend on nothing: not on the threads, the CPU or how the work is divided.
//!
//! Every number of a product is one chain of fused multiply-adds in `f32`, in the order of the inner dimension. Vectors
//! hold numbers of different chains, so the width of the registers does not matter. All matrices are row-major.
//!
//! If the operands are bf16, denormal numbers are 0 in such a chain, be they operands, sums or results of a step: this is
//! what the CPU's instructions for bf16 do, and all other code does the same. Weights may be stored in the other precision:
//! they are rounded to that of the product, or widened, while they are packed.
//!
//! `step` has the instructions, `panel` copies operands to the order in which these need them and multiplies two panels,
//! `blocks` divides a product into parts that stay in the caches, `work` does them on threads.

mod blocks;
mod kind;
mod merged;
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
pub use merged::{Codes, CodesMut, Rounding, SHARED};
use panel::Operand;
use work::{Merged, Result, Target, Work};

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

/// Lines of scratch memory that `forward` needs.
pub fn forward_scratch(size: Size, threads: usize) -> usize {
    most_scratch(size, false, threads).div_ceil(LANES)
}

/// Of `scratch` and `merged_scratch`, which are enough for any CPU and any number of rows up to this one, the lines that
/// the products of exactly this size write on this CPU.
pub fn written_scratch<T: Element>(size: Size, training: bool, merged: bool, threads: usize) -> usize {
    let numbers = Kind::best::<T>().numbers();
    let lines = |size: Size, in_place| {
        let is_empty = size.rows == 0 || size.columns == 0 || size.inner == 0;
        if is_empty { 0 } else { Blocks::new(size, size_of::<T>(), numbers, in_place, threads).scratch() }
    };
    let in_place = size_of::<T>() == size_of::<f32>();
    let forward = lines(size, in_place);
    match training {
        true => forward.max(lines(size.backward(), in_place)).max(lines(size.accumulate(), !merged)),
        false => forward,
    }
}

/// Those of products of bf16 numbers, the widest in use.
pub fn vectors() -> Widest {
    Kind::best::<Bf16>().vectors()
}

/// The same for `accumulate_merged`.
pub fn merged_scratch(size: Size, threads: usize) -> usize {
    most_scratch(size.accumulate(), false, threads).div_ceil(LANES)
}

/// `y = x w^T`, plus `added` if there is one.
pub fn forward<T: Element, W: Element>(
    x: &[T],
    w: &[W],
    added: Option<&[T]>,
    y: &mut [T],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    forward_with(Kind::best::<T>(), x, w, added, y, size, scratch, threads);
}

/// `dx = dy w`: the gradient of `x` from that of `y`.
pub fn backward<T: Element, W: Element>(
    dy: &[T],
    w: &[W],
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

/// The same with a gradient in 8 bits: `dy^T x`, summed in `f32`, is added to it and rounded.
pub fn accumulate_merged<T: Element>(
    dy: &[T],
    x: &[T],
    grad: CodesMut<'_>,
    rounding: Rounding,
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    accumulate_merged_with(Kind::best::<T>(), dy, x, grad, rounding, size, scratch, threads);
}

#[allow(clippy::too_many_arguments)]
fn accumulate_merged_with<T: Element>(
    kind: Kind,
    dy: &[T],
    x: &[T],
    grad: CodesMut<'_>,
    rounding: Rounding,
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    assert!(dy.len() == size.rows * size.columns && x.len() == size.rows * size.inner);
    assert!(grad.codes.len() == size.columns * size.inner && size.inner.is_multiple_of(SHARED));
    assert_eq!(grad.exponents.len() * SHARED, grad.codes.len());
    let left = Operand { numbers: dy, stride: size.columns, along: false, beyond: PLUS_ZERO };
    let right = Operand { numbers: x, stride: size.inner, along: false, beyond: MINUS_ZERO };
    let (codes, exponents) = (grad.codes.as_mut_ptr(), grad.exponents.as_mut_ptr());
    let target = Target::Merged(Merged { codes, exponents, rounding });
    multiply(kind, left, right, size.accumulate(), target, scratch, threads);
}

#[allow(clippy::too_many_arguments)]
fn forward_with<T: Element, W: Element>(
    kind: Kind,
    x: &[T],
    w: &[W],
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
    let target = Target::Result(Result { start: y.as_mut_ptr(), added });
    multiply(kind, left, right, size, target, scratch, threads);
}

fn backward_with<T: Element, W: Element>(
    kind: Kind,
    dy: &[T],
    w: &[W],
    dx: &mut [T],
    size: Size,
    scratch: &mut [Line],
    threads: usize,
) {
    assert!(dy.len() == size.rows * size.columns && w.len() == size.columns * size.inner);
    assert!(dx.len() == size.rows * size.inner);
    let left = Operand { numbers: dy, stride: size.columns, along: true, beyond: PLUS_ZERO };
    let right = Operand { numbers: w, stride: size.inner, along: false, beyond: MINUS_ZERO };
    let target = Target::Result(Result { start: dx.as_mut_ptr(), added: None });
    multiply(kind, left, right, size.backward(), target, scratch, threads);
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
    let target = Target::Sums(grad.as_mut_ptr());
    multiply(kind, left, right, size.accumulate(), target, scratch, threads);
}

/// The bits of zeros in bf16.
const PLUS_ZERO: u16 = 0;
const MINUS_ZERO: u16 = 0x8000;

/// The target has the size of the product.
fn multiply<T: Element, W: Element>(
    kind: Kind,
    left: Operand<T>,
    right: Operand<W>,
    size: Size,
    target: Target<T>,
    scratch: &mut [Line],
    threads: usize,
) {
    let is_result = matches!(target, Target::Result(_));
    if size.rows == 0 || size.columns == 0 || (size.inner == 0 && !is_result) {
        return;
    }
    let in_place = match target {
        Target::Result(_) => size_of::<T>() == size_of::<f32>(),
        Target::Sums(_) => true,
        Target::Merged(_) => false,
    };
    let blocks = Blocks::new(size, size_of::<T>(), kind.numbers(), in_place, threads);
    // SAFETY: callers have checked the sizes.
    let work = unsafe { Work::new(left, right, blocks, target, scratch) };
    kind.run(&work);
}
