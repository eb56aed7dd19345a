//! Causal attention in blocks, forward and backward: never a matrix of tokens x tokens.
//!
//! Queries, keys and values are columns of larger matrices, a row per token. A token attends to earlier tokens of its
//! sequence and to itself; with documents, only to those of the same document. A document is a run of equal ids; the
//! one with the id -1 at the beginning of a sequence is seen by all others (`mask::SHARED`).
//!
//! No result depends on the threads, the CPU or the other sequences: the softmax of a query is computed in blocks of
//! keys that begin at multiples of their size, and everything else is chains of fused multiply-adds in the order of the
//! keys, or of heads and queries, however it is divided among threads (`block`).

mod backward;
mod block;
mod forward;
mod mask;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

use crate::kernels::{Element, LANES, Line};
use mask::QUERIES;
use std::marker::PhantomData;
use std::sync::Mutex;

#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub seq_len: usize,
    pub heads: usize,
    /// Divides `heads`: so many query heads share a key and value head.
    pub kv_heads: usize,
    /// Of a head.
    pub width: usize,
}

impl Sizes {
    /// Lines of a head's row.
    fn lines(&self) -> usize {
        self.width.div_ceil(LANES)
    }

    /// Of scores.
    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// So many times some panels of queries are in a sequence.
    fn units(&self, panels: usize) -> usize {
        self.seq_len.div_ceil(panels * QUERIES)
    }

    /// How many panels of queries, up to `most`, a thread takes at a time: a block of keys and values is copied once for
    /// all of them, but every thread should have work. This changes no result.
    fn panels(&self, most: usize, tokens: usize, threads: usize) -> usize {
        let enough = |panels: &usize| tokens / self.seq_len * self.heads * self.units(*panels) >= 4 * threads;
        (2..=most).rev().find(enough).unwrap_or(1)
    }
}

/// Columns `first..` of a matrix with `stride` columns.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    pub data: &'a [T],
    pub stride: usize,
    pub first: usize,
}

/// The same, to write. Several may be of one matrix.
pub struct ViewMut<'a, T> {
    data: *mut T,
    len: usize,
    stride: usize,
    first: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `row` returns parts that the caller keeps disjoint.
unsafe impl<T: Send> Sync for ViewMut<'_, T> {}
// SAFETY: it is a mutable slice.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}

impl<'a, T> ViewMut<'a, T> {
    pub fn new(data: &'a mut [T], stride: usize, first: usize) -> ViewMut<'a, T> {
        let [view] = ViewMut::parts(data, stride, [first]);
        view
    }

    /// Several parts of the columns of one matrix.
    pub fn parts<const N: usize>(
        data: &'a mut [T],
        stride: usize,
        firsts: [usize; N],
    ) -> [ViewMut<'a, T>; N] {
        let (data, len) = (data.as_mut_ptr(), data.len());
        firsts.map(|first| ViewMut { data, len, stride, first, borrowed: PhantomData })
    }

    /// `width` columns of a row, from `column` of this view on.
    ///
    /// # Safety
    /// Nobody else may have any of them.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    unsafe fn row(&self, row: usize, column: usize, width: usize) -> &mut [T] {
        let start = row * self.stride + self.first + column;
        assert!(start + width <= self.len);
        // SAFETY: within the matrix, and not shared, as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), width) }
    }
}

#[derive(Clone, Copy)]
pub struct Given<'a, T> {
    pub q: View<'a, T>,
    pub k: View<'a, T>,
    pub v: View<'a, T>,
    /// One for each token.
    pub documents: Option<&'a [i64]>,
    pub sizes: Sizes,
}

/// Lines of scratch memory that `forward` or `backward` needs for so many tokens or fewer.
pub fn scratch(sizes: Sizes, tokens: usize, threads: usize) -> usize {
    threads.max(1) * forward::scratch(sizes).max(backward::scratch(sizes, tokens, threads))
}

/// Writes the result, (tokens, heads x width), and what the backward pass needs to know of each softmax, (tokens, heads,
/// 2): the greatest score, and 1 / the sum of the exponentials of the scores minus that one.
///
/// # Panics
/// If the slices do not have these sizes, or `scratch` is less than `scratch()`.
pub fn forward<T: Element>(
    given: Given<'_, T>,
    out: &mut [T],
    stats: &mut [f32],
    scratch: &mut [Line],
    threads: usize,
) {
    check(&given, out.len(), stats.len());
    forward::forward(given, out, stats, scratch, threads);
}

/// Writes the gradients of queries, keys and values from that of the result.
///
/// # Panics
/// If the slices do not have these sizes, `scratch` is less than `scratch()`, or views of one matrix overlap.
pub fn backward<T: Element>(
    given: Given<'_, T>,
    out: &[T],
    stats: &[f32],
    d_out: &[T],
    gradients: [ViewMut<'_, T>; 3],
    scratch: &mut [Line],
    threads: usize,
) {
    let Sizes { heads, kv_heads, width, .. } = given.sizes;
    check(&given, out.len(), stats.len());
    assert!(d_out.len() == out.len());
    let columns = |number: usize| {
        let (view, heads) = (&gradients[number], [heads, kv_heads, kv_heads][number]);
        assert!(view.first + heads * width <= view.stride);
        (view.data, view.first..view.first + heads * width)
    };
    for [one, other] in [[0, 1], [0, 2], [1, 2]] {
        let ((one, own), (other, theirs)) = (columns(one), columns(other));
        assert!(one != other || own.end <= theirs.start || theirs.end <= own.start);
    }
    backward::backward(given, [out, d_out], stats, gradients, scratch, threads);
}

fn check<T>(given: &Given<'_, T>, out: usize, stats: usize) {
    let Sizes { seq_len, heads, kv_heads, width } = given.sizes;
    let tokens = out / (heads * width);
    assert!(
        out == tokens * heads * width && tokens.is_multiple_of(seq_len) && heads.is_multiple_of(kv_heads)
    );
    assert!(stats == tokens * heads * 2);
    assert!(given.documents.is_none_or(|documents| documents.len() == tokens));
}

/// Scratch memory for each thread.
struct Workplaces<'a>(Mutex<Vec<&'a mut [Line]>>);

impl<'a> Workplaces<'a> {
    fn new(scratch: &'a mut [Line], lines: usize, threads: usize) -> Workplaces<'a> {
        let threads = threads.max(1);
        assert!(scratch.len() >= threads * lines);
        Workplaces(Mutex::new(scratch.chunks_exact_mut(lines).take(threads).collect()))
    }

    fn take(&self) -> &'a mut [Line] {
        self.0.lock().unwrap().pop().expect("scratch for every thread")
    }

    fn give_back(&self, scratch: &'a mut [Line]) {
        self.0.lock().unwrap().push(scratch);
    }
}
