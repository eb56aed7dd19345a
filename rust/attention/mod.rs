//! Causal attention in blocks, forward and backward: never a matrix of tokens x tokens.
//!
//! Queries, keys and values are columns of larger matrices, a row per token. A token attends to earlier tokens of its
//! sequence and to itself; with documents, only to those of the same document.

use crate::kernels::{Element, Line};

#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub seq_len: usize,
    pub heads: usize,
    /// Divides `heads`: so many query heads share a key and value head.
    pub kv_heads: usize,
    /// Of a head.
    pub width: usize,
}

/// Columns `first..` of a matrix with `stride` columns.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    pub data: &'a [T],
    pub stride: usize,
    pub first: usize,
}

pub struct ViewMut<'a, T> {
    pub data: &'a mut [T],
    pub stride: usize,
    pub first: usize,
}

/// Lines of scratch memory that `forward` or `backward` needs.
pub fn scratch(_sizes: Sizes, _tokens: usize, _threads: usize) -> usize {
    0
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

/// Writes the result, (tokens, heads x width), and what the backward pass needs to know of each softmax, (tokens, heads,
/// 2): the greatest score, and 1 / the sum of the exponentials of the scores minus that one.
pub fn forward<T: Element>(
    given: Given<'_, T>,
    out: &mut [T],
    stats: &mut [f32],
    _scratch: &mut [Line],
    _threads: usize,
) {
    let Sizes { seq_len, heads, kv_heads, width } = given.sizes;
    let scale = 1.0 / (width as f32).sqrt();
    for token in 0..out.len() / (heads * width) {
        for head in 0..heads {
            let first = token / seq_len * seq_len;
            let kv_head = head / (heads / kv_heads);
            let score = |other: usize| {
                let mut sum = 0.0_f32;
                for i in 0..width {
                    let q = given.q.data[token * given.q.stride + given.q.first + head * width + i].widen();
                    let k =
                        given.k.data[other * given.k.stride + given.k.first + kv_head * width + i].widen();
                    sum = q.mul_add(k, sum);
                }
                sum * scale
            };
            let seen: Vec<usize> = (first..=token)
                .filter(|&other| given.documents.is_none_or(|documents| documents[other] == documents[token]))
                .collect();
            let scores: Vec<f32> = seen.iter().map(|&other| score(other)).collect();
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = scores.iter().map(|score| (score - most).exp()).sum();
            let of_token = &mut stats[(token * heads + head) * 2..][..2];
            of_token.copy_from_slice(&[most, 1.0 / sum]);
            for i in 0..width {
                let mut mean = 0.0_f32;
                for (&other, score) in seen.iter().zip(&scores) {
                    let v =
                        given.v.data[other * given.v.stride + given.v.first + kv_head * width + i].widen();
                    mean = ((score - most).exp() / sum).mul_add(v, mean);
                }
                out[(token * heads + head) * width + i] = T::narrow(mean);
            }
        }
    }
}

/// Writes the gradients of queries, keys and values from that of the result.
#[allow(clippy::too_many_arguments)]
pub fn backward<T: Element>(
    given: Given<'_, T>,
    out: &[T],
    stats: &[f32],
    d_out: &[T],
    [d_q, d_k, d_v]: [ViewMut<'_, T>; 3],
    _scratch: &mut [Line],
    _threads: usize,
) {
    let Sizes { seq_len, heads, kv_heads, width } = given.sizes;
    let tokens = out.len() / (heads * width);
    let scale = 1.0 / (width as f32).sqrt();
    let at = |view: &View<'_, T>, token: usize, head: usize, i: usize| {
        view.data[token * view.stride + view.first + head * width + i].widen()
    };
    let (mut q, mut k, mut v) = (
        vec![0.0_f32; tokens * heads * width],
        vec![0.0_f32; tokens * kv_heads * width],
        vec![0.0_f32; tokens * kv_heads * width],
    );
    for token in 0..tokens {
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let own = (token * heads + head) * width;
            let shared: f32 = (0..width).map(|i| out[own + i].widen() * d_out[own + i].widen()).sum();
            for other in token / seq_len * seq_len..=token {
                if given.documents.is_some_and(|documents| documents[other] != documents[token]) {
                    continue;
                }
                let (mut score, mut d_share) = (0.0_f32, 0.0_f32);
                for i in 0..width {
                    score = at(&given.q, token, head, i).mul_add(at(&given.k, other, kv_head, i), score);
                    d_share = d_out[own + i].widen().mul_add(at(&given.v, other, kv_head, i), d_share);
                }
                let [most, part] = *stats[(token * heads + head) * 2..].first_chunk().unwrap();
                let share = (score * scale - most).exp() * part;
                let d_score = share * (d_share - shared) * scale;
                let theirs = (other * kv_heads + kv_head) * width;
                for i in 0..width {
                    q[own + i] += d_score * at(&given.k, other, kv_head, i);
                    k[theirs + i] += d_score * at(&given.q, token, head, i);
                    v[theirs + i] += share * d_out[own + i].widen();
                }
            }
        }
    }
    for (view, from, heads) in [(d_q, q, heads), (d_k, k, kv_heads), (d_v, v, kv_heads)] {
        for (token, row) in from.chunks_exact(heads * width).enumerate() {
            let to = &mut view.data[token * view.stride + view.first..][..heads * width];
            for (to, &from) in to.iter_mut().zip(row) {
                *to = T::narrow(from);
            }
        }
    }
}
