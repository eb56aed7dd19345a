//! Attention in f64, as it is defined.

use super::mask::SHARED;
use super::{Given, Sizes, View};
use crate::kernels::Element;

pub struct Expected {
    pub out: Vec<f64>,
    /// Of queries, keys and values: (tokens, heads or key and value heads, width).
    pub gradients: [Vec<f64>; 3],
}

pub fn attention<T: Element>(given: Given<'_, T>, d_out: &[T]) -> Expected {
    let Sizes { seq_len, heads, kv_heads, width } = given.sizes;
    let tokens = d_out.len() / (heads * width);
    let scale = 1.0 / (width as f64).sqrt();
    let row = |view: View<'_, T>, token: usize, head: usize| -> Vec<f64> {
        let row = &view.data[token * view.stride + view.first + head * width..][..width];
        row.iter().map(|number| f64::from(number.widen())).collect()
    };
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let add = |to: &mut [f64], factor: f64, from: &[f64]| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
    };
    let [mut out, mut d_q] = [(); 2].map(|()| vec![0.0; tokens * heads * width]);
    let [mut d_k, mut d_v] = [(); 2].map(|()| vec![0.0; tokens * kv_heads * width]);
    for token in 0..tokens {
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let own = (token * heads + head) * width..(token * heads + head + 1) * width;
            let first = token / seq_len * seq_len;
            let sees = |documents: &[i64], other: usize| {
                documents[other] == documents[token]
                    || documents[first..=other].iter().all(|&each| each == SHARED)
            };
            let seen: Vec<usize> = (first..=token)
                .filter(|&other| given.documents.is_none_or(|documents| sees(documents, other)))
                .collect();
            let q = row(given.q, token, head);
            let keys: Vec<_> = seen.iter().map(|&other| row(given.k, other, kv_head)).collect();
            let values: Vec<_> = seen.iter().map(|&other| row(given.v, other, kv_head)).collect();
            let scores: Vec<f64> = keys.iter().map(|k| dot(&q, k) * scale).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            let shares: Vec<f64> = scores.iter().map(|score| (score - most).exp() / sum).collect();
            for (share, v) in shares.iter().zip(&values) {
                add(&mut out[own.clone()], *share, v);
            }
            let d_out: Vec<f64> = d_out[own.clone()].iter().map(|number| f64::from(number.widen())).collect();
            let mean = dot(&d_out, &out[own.clone()]);
            for (at, &other) in seen.iter().enumerate() {
                let theirs = (other * kv_heads + kv_head) * width..(other * kv_heads + kv_head + 1) * width;
                let d_score = shares[at] * (dot(&d_out, &values[at]) - mean) * scale;
                add(&mut d_q[own.clone()], d_score, &keys[at]);
                add(&mut d_k[theirs.clone()], d_score, &q);
                add(&mut d_v[theirs], shares[at], &d_out);
            }
        }
    }
    Expected { out, gradients: [d_q, d_k, d_v] }
}
