//! The norm behind the last layer, the logits and the loss, a chunk of tokens at a time.

use super::model::Pass;
use super::shape::Place;
use crate::kernels::{self, Element, IGNORE};

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
            let (grads, losses) = self.logits_grad(hidden, weight, &self.batch.labels[some], scale);
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

    /// 0 for ignored tokens, which have no logits: of a text whose end alone is of interest, most.
    pub(super) fn token_losses(&self, losses: &mut [f32]) {
        let width = self.shape().width;
        let hidden = self.hidden();
        let labels = self.batch.labels;
        let wanted: Vec<usize> = (0..labels.len()).filter(|&token| labels[token] != IGNORE).collect();
        for (to, &from) in wanted.iter().enumerate().filter(|&(to, &from)| to != from) {
            hidden.copy_within(from * width..(from + 1) * width, to * width);
        }
        losses.fill(0.0);
        let mut first = 0;
        for some in wanted.chunks(self.model.choice.chunk_tokens()) {
            let hidden = &hidden[first * width..][..some.len() * width];
            let labels: Vec<i64> = some.iter().map(|&token| labels[token]).collect();
            let (_, found) = self.logits_grad(hidden, self.model.places.head, &labels, 0.0);
            for (&token, &loss) in some.iter().zip(found) {
                losses[token] = loss;
            }
            first += some.len();
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
    fn logits_grad(&self, hidden: &[T], head: Place, labels: &[i64], scale: f32) -> (&[T], &[f32]) {
        let logits: &mut [T] = self.slice(self.activations().logits, labels.len() * head.rows);
        let losses: &mut [f32] = self.slice(self.activations().losses, labels.len());
        self.product(hidden, head, None, logits);
        let vocab = self.shape().vocab;
        kernels::cross_entropy(logits, labels, vocab, scale, losses, self.threads()).expect("checked");
        (logits, losses)
    }
}
