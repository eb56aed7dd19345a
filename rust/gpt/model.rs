//! A model in its arena, and a pass over a micro-batch: the memory of both.

use super::activations::{STATS, attention_sizes};
use super::arena::{Arena, Span};
use super::choice::{Choice, Precision};
use super::flat;
use super::layout::Layout;
use super::shape::{Place, Places, Shape};
use crate::attention;
use crate::kernels::{BadLabel, BadPosition, Bf16, Element, IGNORE, Line, Mask};
use crate::products;
use std::io;
use std::marker::PhantomData;

pub struct Model {
    pub(super) shape: Shape,
    pub(super) choice: Choice,
    pub(super) places: Places,
    pub(super) layout: Layout,
    pub(super) arena: Arena,
    /// Tokens whose embedding gradients are held back.
    pub(super) held: usize,
}

/// A micro-batch: sequences of the same length, one after the other.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub ids: &'a [i64],
    pub labels: &'a [i64],
    /// 0, 1, 2, ... if there are none.
    pub positions: Option<&'a [i64]>,
    /// Tokens see earlier ones of the same document only.
    pub documents: Option<&'a [i64]>,
    /// Of dropout, one for each sequence; without them there is none.
    pub keys: Option<&'a [i64]>,
    pub seq_len: usize,
}

/// Something in a batch that is out of range.
#[derive(Debug, PartialEq, Eq)]
pub enum Bad {
    Id(i64),
    Label(BadLabel),
    Position(BadPosition),
}

impl Model {
    /// `cos` and `sin` are the rotary tables, a row of half a head's width for each position of a sequence.
    pub fn new(shape: Shape, choice: Choice, cos: &[f32], sin: &[f32]) -> io::Result<Model> {
        let places = Places::new(&shape);
        let layout = Layout::new(&shape, &places, &choice);
        let arena = Arena::new(layout.parts.total())?;
        let mut model = Model { shape, choice, places, layout, arena, held: 0 };
        for (span, table) in [(model.layout.cos, cos), (model.layout.sin, sin)] {
            model.flat(span, span.bytes / 4).copy_from_slice(table);
        }
        Ok(model)
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    pub fn address(&self, span: Span) -> usize {
        self.arena.address(span)
    }

    pub(super) fn flat<T>(&mut self, span: Span, count: usize) -> &mut [T] {
        // SAFETY: the model is borrowed as long as the slice, and all types in it are numbers.
        unsafe { self.arena.slice(span, count) }
    }

    pub(super) fn gains(&mut self) -> &mut [f32] {
        self.flat(self.layout.gains, self.places.gains)
    }

    /// Updates the copy of the matrices for products, after the weights were changed.
    pub fn refresh(&mut self) {
        let Layout { matrices, products, .. } = self.layout;
        if matrices == products {
            return;
        }
        let (count, threads) = (self.places.matrices, self.choice.threads);
        // SAFETY: two places of a model that is borrowed.
        unsafe {
            match (self.choice.weights, self.choice.compute) {
                (Precision::Fp32, _) => {
                    let to: &mut [Bf16] = self.arena.slice(products, count);
                    flat::convert(self.arena.slice::<f32>(matrices, count), to, threads);
                }
                (Precision::Bf16, _) => {
                    let to: &mut [f32] = self.arena.slice(products, count);
                    flat::convert(self.arena.slice::<Bf16>(matrices, count), to, threads);
                }
            }
        }
    }

    /// The summed loss of a batch; adds `scale` times its gradient to the gradients.
    pub fn learn(&mut self, batch: Batch<'_>, scale: f32) -> Result<f64, Bad> {
        self.check(&batch)?;
        match self.choice.compute {
            Precision::Fp32 => Ok(self.learn_as::<f32>(batch, scale)),
            Precision::Bf16 => Ok(self.learn_as::<Bf16>(batch, scale)),
        }
    }

    fn learn_as<T: Element>(&mut self, batch: Batch<'_>, scale: f32) -> f64 {
        let pass = Pass::<T>::new(self, batch);
        pass.forward();
        let total = pass.head(scale);
        pass.backward();
        self.add_embedding_grads::<T>(batch);
        total
    }

    /// The loss of each token, without dropout; 0 for ignored ones.
    pub fn losses(&mut self, batch: Batch<'_>, losses: &mut [f32]) -> Result<(), Bad> {
        self.check(&batch)?;
        match self.choice.compute {
            Precision::Fp32 => self.losses_as::<f32>(batch, losses),
            Precision::Bf16 => self.losses_as::<Bf16>(batch, losses),
        }
        Ok(())
    }

    fn losses_as<T: Element>(&mut self, batch: Batch<'_>, losses: &mut [f32]) {
        let pass = Pass::<T>::new(self, Batch { keys: None, ..batch });
        pass.forward();
        pass.token_losses(losses);
    }

    /// Nothing is changed if something is out of range.
    fn check(&self, batch: &Batch<'_>) -> Result<(), Bad> {
        let tokens = batch.ids.len();
        let outside = |number: i64, end: usize| number < 0 || number as u64 >= end as u64;
        assert!(batch.seq_len > 0 && batch.seq_len <= self.choice.seq_len && tokens <= self.choice.tokens());
        assert!(tokens.is_multiple_of(batch.seq_len) && batch.labels.len() == tokens);
        assert!(batch.positions.is_none_or(|positions| positions.len() == tokens));
        assert!(batch.documents.is_none_or(|documents| documents.len() == tokens));
        assert!(batch.keys.is_none_or(|keys| keys.len() * batch.seq_len == tokens));
        let vocab = self.shape.vocab;
        if let Some(&id) = batch.ids.iter().find(|&&id| outside(id, vocab)) {
            return Err(Bad::Id(id));
        }
        if let Some(&label) = batch.labels.iter().find(|&&label| label != IGNORE && outside(label, vocab)) {
            return Err(Bad::Label(BadLabel(label)));
        }
        let positions = batch.positions.unwrap_or(&[]);
        match positions.iter().find(|&&position| outside(position, self.choice.seq_len)) {
            Some(&position) => Err(Bad::Position(BadPosition(position))),
            None => Ok(()),
        }
    }
}

/// One pass over a batch, in the precision of the products.
///
/// It hands out slices of the arena without the borrow checker. That is sound because a pass borrows the model for
/// itself, all slices are numbers, and no function has two slices of overlapping places at the same time: which places
/// overlap, and when each is in use, is said in `layout`.
pub(super) struct Pass<'a, T> {
    pub(super) model: &'a Model,
    pub(super) batch: Batch<'a>,
    pub(super) positions: &'a [i64],
    precision: PhantomData<T>,
}

#[allow(clippy::mut_from_ref)]
impl<'a, T: Element> Pass<'a, T> {
    pub(super) fn new(model: &'a mut Model, batch: Batch<'a>) -> Pass<'a, T> {
        let model = &*model;
        let tokens = batch.ids.len();
        // SAFETY: see above.
        let own: &mut [i64] = unsafe { model.arena.slice(model.layout.activations.positions, tokens) };
        for (token, position) in own.iter_mut().enumerate() {
            *position = (token % batch.seq_len) as i64;
        }
        Pass { model, batch, positions: batch.positions.unwrap_or(own), precision: PhantomData }
    }

    pub(super) fn tokens(&self) -> usize {
        self.batch.ids.len()
    }

    pub(super) fn threads(&self) -> usize {
        self.model.choice.threads
    }

    pub(super) fn slice<N>(&self, span: Span, count: usize) -> &mut [N] {
        // SAFETY: see above.
        unsafe { self.model.arena.slice(span, count) }
    }

    /// Activations: a row for each token.
    pub(super) fn rows(&self, span: Span, columns: usize) -> &mut [T] {
        self.slice(span, self.tokens() * columns)
    }

    pub(super) fn stream(&self, span: Span) -> &mut [T] {
        self.rows(span, self.model.shape.width)
    }

    pub(super) fn stats(&self, span: Span) -> &mut [f32] {
        self.slice(span, self.tokens() * self.model.shape.heads * STATS)
    }

    /// One of the weights or gradients in a flat array.
    fn placed<N>(&self, flat: Span, place: Place) -> &mut [N] {
        let range = place.range();
        self.slice(flat.part::<N>(range.clone()), range.len())
    }

    pub(super) fn weight(&self, place: Place) -> &[T] {
        self.placed(self.model.layout.products, place)
    }

    pub(super) fn gain(&self, place: Place) -> &[f32] {
        self.placed(self.model.layout.gains, place)
    }

    pub(super) fn gain_grad(&self, place: Place) -> &mut [f32] {
        self.placed(self.model.layout.gain_grads, place)
    }

    fn work(&self) -> &mut [Line] {
        let work = self.model.layout.activations.work;
        self.slice(work, work.bytes / size_of::<Line>())
    }

    /// `x w^T`, plus `added` if there is one.
    pub(super) fn product(&self, x: &[T], w: Place, added: Option<&[T]>, y: &mut [T]) {
        products::forward(x, self.weight(w), added, y, size(x, w), self.work(), self.threads());
    }

    pub(super) fn product_backward(&self, dy: &[T], w: Place, dx: &mut [T]) {
        products::backward(dy, self.weight(w), dx, size(dx, w), self.work(), self.threads());
    }

    /// Adds the gradient of a weight.
    pub(super) fn accumulate(&self, dy: &[T], x: &[T], w: Place) {
        let grad = self.placed(self.model.layout.matrix_grads, w);
        products::accumulate(dy, x, grad, size(x, w), self.work(), self.threads());
    }

    pub(super) fn attention(&self, given: attention::Given<'_, T>, out: &mut [T], stats: &mut [f32]) {
        attention::forward(given, out, stats, self.work(), self.threads());
    }

    pub(super) fn attention_backward(
        &self,
        given: attention::Given<'_, T>,
        (out, stats, d_out): (&[T], &[f32], &[T]),
        grads: [attention::ViewMut<'_, T>; 3],
    ) {
        attention::backward(given, out, stats, d_out, grads, self.work(), self.threads());
    }

    pub(super) fn attention_sizes(&self) -> attention::Sizes {
        attention_sizes(&self.model.shape, self.batch.seq_len)
    }

    /// Of dropout. The first place is the embedding; each layer has two.
    pub(super) fn mask(&self, place: usize) -> Option<Mask<'a>> {
        let rate = self.model.choice.dropout;
        let keys = self.batch.keys.filter(|_| rate > 0.0)?;
        let threshold = (rate * 4_294_967_296.0).round_ties_even().min(f64::from(u32::MAX)) as u32;
        Some(Mask { keys, place: place as u32, threshold, scale: (1.0 / (1.0 - rate)) as f32 })
    }
}

/// Of the product of a matrix of inputs with a weight.
fn size<T>(x: &[T], w: Place) -> products::Size {
    products::Size { rows: x.len() / w.columns, inner: w.columns, columns: w.rows }
}
