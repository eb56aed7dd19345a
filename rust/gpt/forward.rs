//! The forward pass: token ids to the residual stream behind the last layer.
//!
//! For each token a layer keeps its input, the product of queries, keys and values (without QK-norm they are rotated),
//! the attention's result, the input of the feed-forward block, gate and up. Norms and the gated product are computed
//! again in the backward pass; with activation checkpointing, everything but the input is.

use super::activations::{Activations, Kept};
use super::model::Pass;
use super::shape::{LayerPlaces, Shape};
use crate::attention::{Given, View};
use crate::kernels::{self, Element, Heads, Rotary};

impl<T: Element> Pass<'_, T> {
    pub(super) fn activations(&self) -> &Activations {
        &self.model.layout.activations
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.model.shape
    }

    pub(super) fn layer(&self, number: usize) -> (LayerPlaces, Kept) {
        (self.model.places.layers[number], self.activations().layers[number])
    }

    pub(super) fn forward(&self) {
        self.embed();
        for number in 0..self.shape().layers {
            self.attend(number);
            self.expand(number);
            self.contract(number);
        }
    }

    fn embed(&self) {
        let width = self.shape().width;
        let (first, normed) = (self.activations().inputs[0], self.activations().normed);
        let mask = self.mask(0);
        let rows = self.stream(if mask.is_some() { normed } else { first });
        for (row, &id) in rows.chunks_exact_mut(width).zip(self.batch.ids) {
            self.copy_row(self.model.places.embedding, id as usize, row);
        }
        if let Some(mask) = mask {
            kernels::dropout(rows, mask, width, self.stream(first), self.threads());
        }
    }

    /// From a layer's input to that of its feed-forward block.
    pub(super) fn attend(&self, number: usize) {
        let (places, kept) = self.layer(number);
        let x = &*self.stream(self.activations().inputs[number]);
        let normed = self.stream(self.activations().normed);
        kernels::norm(x, self.gain(places.norm_attention), self.shape().eps, normed, self.threads());
        let qkv = self.rows(kept.qkv, self.shape().qkv_width());
        self.product(normed, places.qkv, None, qkv);
        match self.heads(&places) {
            Some(heads) => self.qk_norm(qkv, &heads),
            None => self.rotate(qkv, false),
        }
        let attended = self.rows(kept.attended, self.shape().queries_width());
        self.attention(self.given(qkv), attended, self.stats(kept.stats));
        let middle = self.stream(kept.middle);
        match self.mask(2 * number + 1) {
            None => self.product(attended, places.out, Some(x), middle),
            Some(mask) => {
                self.product(attended, places.out, None, middle);
                kernels::dropout_add(middle, x, mask, self.shape().width, self.threads());
            }
        }
    }

    /// From the input of a feed-forward block to gate and up.
    pub(super) fn expand(&self, number: usize) {
        let (places, kept) = self.layer(number);
        let normed = self.stream(self.activations().normed);
        let middle = &*self.stream(kept.middle);
        kernels::norm(middle, self.gain(places.norm_feed_forward), self.shape().eps, normed, self.threads());
        let gate_up = self.rows(kept.gate_up, 2 * self.shape().feed_forward);
        self.product(normed, places.gate_up, None, gate_up);
    }

    /// From gate and up to the next layer's input.
    fn contract(&self, number: usize) {
        let (places, kept) = self.layer(number);
        let half = self.shape().feed_forward;
        let act = self.rows(self.activations().act, half);
        kernels::gate(self.rows(kept.gate_up, 2 * half), half, act, self.threads());
        let x = &*self.stream(kept.middle);
        let next = self.stream(self.activations().inputs[number + 1]);
        match self.mask(2 * number + 2) {
            None => self.product(act, places.down, Some(x), next),
            Some(mask) => {
                self.product(act, places.down, None, next);
                kernels::dropout_add(next, x, mask, self.shape().width, self.threads());
            }
        }
    }

    /// With QK-norm.
    pub(super) fn heads(&self, places: &LayerPlaces) -> Option<Heads<'_>> {
        let Shape { heads, kv_heads, eps, .. } = *self.shape();
        Some(Heads {
            query_gain: self.gain(places.norm_q?),
            key_gain: self.gain(places.norm_k?),
            eps,
            cos: self.table(self.model.layout.cos),
            sin: self.table(self.model.layout.sin),
            positions: self.positions,
            heads,
            kv_heads,
        })
    }

    fn table(&self, span: super::arena::Span) -> &[f32] {
        self.slice(span, span.bytes / 4)
    }

    /// Queries and keys, normalized and rotated, into their place.
    pub(super) fn qk_norm(&self, qkv: &[T], heads: &Heads<'_>) {
        kernels::qk_norm(qkv, heads, self.qk(), self.threads()).expect("checked");
    }

    #[allow(clippy::mut_from_ref)]
    fn qk(&self) -> &mut [T] {
        self.rows(self.activations().qk, self.shape().queries_width() + self.shape().keys_width())
    }

    /// Rotates the queries and keys of `qkv`, or back.
    pub(super) fn rotate(&self, qkv: &mut [T], inverse: bool) {
        let Shape { heads, kv_heads, head_width, .. } = *self.shape();
        let rotary = Rotary {
            cos: self.table(self.model.layout.cos),
            sin: self.table(self.model.layout.sin),
            half: head_width / 2,
            positions: self.positions,
            heads: heads + kv_heads,
            inverse,
        };
        kernels::rotate(qkv, &rotary, self.threads()).expect("checked");
    }

    /// What attention takes: with QK-norm, queries and keys are in a place of their own.
    pub(super) fn given<'b>(&'b self, qkv: &'b [T]) -> Given<'b, T> {
        let shape = self.shape();
        let (queries, keys) = (shape.queries_width(), shape.keys_width());
        let of_qkv = |first| View { data: qkv, stride: shape.qkv_width(), first };
        let (q, k) = match shape.qk_norm {
            false => (of_qkv(0), of_qkv(queries)),
            true => {
                let data = &*self.qk();
                let of_qk = |first| View { data, stride: queries + keys, first };
                (of_qk(0), of_qk(queries))
            }
        };
        let (v, sizes) = (of_qkv(queries + keys), self.attention_sizes());
        Given { q, k, v, documents: self.batch.documents, sizes }
    }
}
