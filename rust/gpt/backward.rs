//! The backward pass: from the gradient behind the last layer to those of all weights.
//!
//! Gradients of matrices are sums over tokens in their order, which go on from one call to the next; those of gains
//! are summed one sequence at a time. So they are the same however a batch is divided into micro-batches.

use super::arena::Span;
use super::flat;
use super::model::{Batch, Model, Pass, Rounded};
use super::shape::Place;
use crate::attention::ViewMut;
use crate::kernels::{self, Element};

impl<T: Element> Pass<'_, T> {
    pub(super) fn backward(&self) {
        for number in (0..self.shape().layers).rev() {
            if self.model.choice.recompute {
                self.attend(number);
                self.expand(number);
            }
            self.feed_forward_backward(number);
            self.attention_backward_of(number);
        }
        if let Some(mask) = self.mask(0) {
            let (grad, dropped) =
                (self.stream(self.activations().grad), self.stream(self.activations().attention_branch));
            kernels::dropout(grad, mask, self.shape().width, dropped, self.threads());
            grad.copy_from_slice(dropped);
        }
    }

    fn feed_forward_backward(&self, number: usize) {
        let (places, kept) = self.layer(number);
        let half = self.shape().feed_forward;
        let d_branch = self.branch_grad(2 * number + 2, self.activations().feed_forward_branch);
        let gate_up = self.rows(kept.gate_up, 2 * half);
        let act = self.rows(self.activations().act, half);
        self.product_backward(d_branch, places.down, act);
        // From here on `gate_up` is its own gradient.
        kernels::gate_backward_in_place(gate_up, act, half, self.threads());
        self.accumulate(d_branch, act, places.down, 0);
        self.through_norm(kept.middle, places.norm_feed_forward, gate_up, places.gate_up);
    }

    fn attention_backward_of(&self, number: usize) {
        let (places, kept) = self.layer(number);
        let shape = self.shape();
        let (queries, keys, stride) = (shape.queries_width(), shape.keys_width(), shape.qkv_width());
        let attended = &*self.rows(kept.attended, queries);
        let d_branch = self.branch_grad(2 * number + 1, self.activations().attention_branch);
        self.accumulate(d_branch, attended, places.out, 0);
        let d_attended = self.rows(kept.d_attended, queries);
        self.product_backward(d_branch, places.out, d_attended);

        let qkv = &*self.rows(kept.qkv, stride);
        let heads = self.heads(&places);
        if let Some(heads) = &heads {
            self.qk_norm(qkv, heads);
        }
        let columns = [0, queries, queries + keys];
        let grads = ViewMut::parts(self.rows(kept.d_qkv, stride), stride, columns);
        let done = (attended, &*self.stats(kept.stats), &*d_attended);
        self.attention_backward(self.given(qkv), done, grads);
        let d_qkv = self.rows(kept.d_qkv, stride);
        match heads.zip(places.norm_q.zip(places.norm_k)) {
            None => self.rotate(d_qkv, true),
            Some((heads, (q, k))) => {
                let grads = [self.gain_grad(q), self.gain_grad(k)];
                kernels::qk_norm_backward(d_qkv, qkv, &heads, grads, self.batch.seq_len, self.threads())
                    .expect("checked");
            }
        }
        self.through_norm(self.activations().inputs[number], places.norm_attention, d_qkv, places.qkv);
    }

    /// The gradient of what a block adds to the residual stream.
    fn branch_grad(&self, place: usize, dropped: Span) -> &[T] {
        let grad = self.stream(self.activations().grad);
        let Some(mask) = self.mask(place) else { return grad };
        let dropped = self.stream(dropped);
        kernels::dropout(grad, mask, self.shape().width, dropped, self.threads());
        dropped
    }

    /// The beginning of a block, `norm(x) w^T`: from the gradient of the product to those of the weight, the gain and
    /// the residual stream.
    fn through_norm(&self, x: Span, gain: Place, d_product: &[T], w: Place) {
        let (x, eps, threads) = (&*self.stream(x), self.shape().eps, self.threads());
        let normed = self.stream(self.activations().normed);
        kernels::norm(x, self.gain(gain), eps, normed, threads);
        self.accumulate(d_product, normed, w, 0);
        self.product_backward(d_product, w, normed);
        let change = self.stream(self.activations().change);
        let unit = self.batch.seq_len;
        let (gain, gain_grad) = (self.gain(gain), self.gain_grad(gain));
        kernels::norm_backward(normed, x, gain, eps, gain_grad, change, unit, threads);
        flat::add(self.stream(self.activations().grad), change, threads);
    }
}

impl Model {
    /// The embedding's gradient from that of the residual stream.
    ///
    /// A tied embedding also has a gradient of the head, which comes first. So that the order does not depend on the
    /// micro-batch, this one is held back until all micro-batches of a group have added theirs
    /// (`engines/torch/order.py`).
    pub(super) fn add_embedding_grads<T: Element>(&mut self, batch: Batch<'_>) {
        let (tokens, most, width) = (batch.ids.len(), self.choice.held, self.shape.width);
        if self.held + tokens > most {
            self.flush_as::<T>();
        }
        // SAFETY: the model is borrowed, and these are three places of it.
        let (rows, held_ids, held_rows): (&[T], &mut [i64], &mut [T]) = unsafe {
            (
                self.arena.slice(self.layout.activations.grad, tokens * width),
                self.arena.slice(self.layout.held_ids, most),
                self.arena.slice(self.layout.held_rows, most * width),
            )
        };
        if tokens > most {
            self.add_rows(batch.ids, rows);
            return self.embedded += tokens;
        }
        held_ids[self.held..][..tokens].copy_from_slice(batch.ids);
        held_rows[self.held * width..][..tokens * width].copy_from_slice(rows);
        self.held += tokens;
        if self.held == most {
            self.flush_as::<T>();
        }
    }

    /// Adds what is held: the last group of a step may be smaller.
    pub(super) fn flush_as<T: Element>(&mut self) {
        let (count, width) = (std::mem::take(&mut self.held), self.shape.width);
        // SAFETY: the model is borrowed, and these are two places of it.
        let (ids, rows): (&[i64], &[T]) = unsafe {
            (
                self.arena.slice(self.layout.held_ids, count),
                self.arena.slice(self.layout.held_rows, count * width),
            )
        };
        self.add_rows(ids, rows);
        self.embedded += count;
    }

    fn add_rows<T: Element>(&self, ids: &[i64], rows: &[T]) {
        let width = self.shape.width;
        if self.has_8bit_grads() {
            return self.add_rows_in_8_bits(ids, rows);
        }
        // SAFETY: the gradients; the callers have borrowed the model, and slices of other places.
        let grads: &mut [f32] = unsafe { self.arena.slice(self.layout.matrix_grads, self.places.matrices) };
        for (&id, row) in ids.iter().zip(rows.chunks_exact(width)) {
            let sum = &mut grads[self.places.embedding.start + id as usize * width..][..width];
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += value.widen();
            }
        }
    }

    fn add_rows_in_8_bits<T: Element>(&self, ids: &[i64], rows: &[T]) {
        let width = self.shape.width;
        let mut wide = vec![0.0; width];
        for (token, (&id, row)) in ids.iter().zip(rows.chunks_exact(width)).enumerate() {
            for (wide, value) in wide.iter_mut().zip(row) {
                *wide = value.widen();
            }
            let start = self.places.embedding.start + id as usize * width;
            // SAFETY: as above.
            let mut grads = unsafe { self.grad_codes(start..start + width) };
            grads.add(&wide, self.rounding(Rounded::Embedding, token, start));
        }
    }
}
