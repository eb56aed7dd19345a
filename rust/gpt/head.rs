//! The norm behind the last layer, the logits and the loss, a chunk of tokens at a time.

use super::model::Pass;
use super::shape::Place;
use crate::kernels::{self, Element};
use std::ops::Range;

impl<T: Element> Pass<'_, T> {
    /// The summed loss. The gradient of the residual stream behind the last layer is in its place afterwards, and
    /// the head's is added.
    pub(super) fn head(&self, scale: f32) -> f64 {
        let width = self.shape().width;
        let weight = self.model.places.head;
        let hidden = self.hidden();
        let mut total = 0.0;
        for some in self.chunks() {
            let hidden = &mut hidden[some.start * width..some.end * width];
            let first = some.start;
            let (grads, losses) = self.logits_grad(hidden, weight, some, scale);
            // fp64 sums of a few thousand losses are exact, so their order does not matter.
            total += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
            self.accumulate(grads, hidden, weight, first);
            // From here on these rows are their own gradient.
            self.product_backward(grads, weight, hidden);
        }
        let gain = self.model.places.norm;
        let x = &*self.stream(self.activations().inputs[self.shape().layers]);
        let grad = self.stream(self.activations().grad);
        let (gain, gain_grad, eps) = (self.gain(gain), self.gain_grad(gain), self.shape().eps);
        kernels::norm_backward(hidden, x, gain, eps, gain_grad, grad, self.batch.seq_len, self.threads());
        total
    }

    pub(super) fn token_losses(&self, losses: &mut [f32]) {
        let width = self.shape().width;
        let hidden = self.hidden();
        for some in self.chunks() {
            let hidden = &hidden[some.start * width..some.end * width];
            let (_, found) = self.logits_grad(hidden, self.model.places.head, some.clone(), 0.0);
            losses[some].copy_from_slice(found);
        }
    }

    #[allow(clippy::mut_from_ref)]
    fn hidden(&self) -> &mut [T] {
        let x = &*self.stream(self.activations().inputs[self.shape().layers]);
        let hidden = self.stream(self.activations().normed);
        kernels::norm(x, self.gain(self.model.places.norm), self.shape().eps, hidden, self.threads());
        hidden
    }

    /// The gradient of the logits of some tokens, and their losses.
    fn logits_grad(&self, hidden: &[T], head: Place, some: Range<usize>, scale: f32) -> (&[T], &[f32]) {
        let logits: &mut [T] = self.slice(self.activations().logits, some.len() * head.rows);
        let losses: &mut [f32] = self.slice(self.activations().losses, some.len());
        self.product(hidden, head, None, logits);
        let (labels, vocab) = (&self.batch.labels[some], self.shape().vocab);
        kernels::cross_entropy(logits, labels, vocab, scale, losses, self.threads()).expect("checked");
        (logits, losses)
    }
}
