//! A model in its arena, and a pass over a micro-batch: the memory of both.

use super::activations::{STATS, attention_sizes};
use super::arena::{Arena, Span};
use super::choice::{Choice, Precision};
use super::layout::{Layout, has_8bit_grads};
use super::shape::{Place, Places, Shape};
use crate::attention;
use crate::kernels::{BadLabel, BadPosition, Bf16, Element, IGNORE, Line, Mask};
use crate::products::{self, CodesMut, Rounding, SHARED};
use crate::scatter::scatter;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;

pub struct Model {
    pub(super) shape: Shape,
    pub(super) choice: Choice,
    pub(super) places: Places,
    pub(super) layout: Layout,
    pub(super) arena: Arena,
    /// Tokens whose embedding gradients are held back.
    pub(super) held: usize,
    /// Tokens of this step before the current batch, and those whose embedding gradients were added.
    pub(super) learned: usize,
    pub(super) embedded: usize,
}

/// What is added to gradients in 8 bits; the numbers seed their rounding.
#[derive(Clone, Copy)]
pub(super) enum Rounded {
    Product = 0x6772_6164,
    Embedding = 0x656d_6265,
}

/// A micro-batch: sequences of the same length, one after the other.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub ids: &'a [i64],
    pub labels: &'a [i64],
    /// 0, 1, 2, ... if there are none.
    pub positions: Option<&'a [i64]>,
    /// Tokens see earlier ones of the same document only, and those with the id -1 at the beginning of the sequence.
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
        let mut model = Model { shape, choice, places, layout, arena, held: 0, learned: 0, embedded: 0 };
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

    pub(super) fn has_8bit_grads(&self) -> bool {
        has_8bit_grads(&self.shape, &self.choice)
    }

    /// Gradients of matrices in 8 bits: whole blocks.
    ///
    /// # Safety
    /// As `Arena::slice`.
    pub(super) unsafe fn grad_codes(&self, range: Range<usize>) -> CodesMut<'_> {
        let blocks = range.start / SHARED..range.end.div_ceil(SHARED);
        // SAFETY: by the caller.
        unsafe {
            CodesMut {
                codes: self.arena.slice(self.layout.matrix_grads.part::<i8>(range.clone()), range.len()),
                exponents: self
                    .arena
                    .slice(self.layout.grad_exponents.part::<u8>(blocks.clone()), blocks.len()),
            }
        }
    }

    /// How gradients that begin at `index` are rounded, when those of the step's tokens from `token` of the batch on are
    /// added: a function of the step, so that neither the division into micro-batches nor an interruption matters.
    pub(super) fn rounding(&self, rounded: Rounded, token: usize, index: usize) -> Rounding {
        let counted = match rounded {
            Rounded::Product => self.learned + token,
            Rounded::Embedding => self.embedded + token,
        };
        let step = scatter((self.steps_of_adamw() as u32).wrapping_add(rounded as u32));
        Rounding { key: scatter(step.wrapping_add(counted as u32)), first_index: index as u32 }
    }

    pub(super) fn gains(&mut self) -> &mut [f32] {
        self.flat(self.layout.gains, self.places.gains)
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
        self.learned += batch.ids.len();
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

    /// A matrix as it is stored.
    fn weight<W>(&self, place: Place) -> &[W] {
        self.placed(self.model.layout.matrices, place)
    }

    /// A row of a matrix, in the precision of the products.
    pub(super) fn copy_row(&self, place: Place, row: usize, to: &mut [T]) {
        let from = row * place.columns..(row + 1) * place.columns;
        match self.model.choice.weights {
            Precision::Fp32 => copy(&self.weight::<f32>(place)[from], to),
            Precision::Bf16 => copy(&self.weight::<Bf16>(place)[from], to),
        }
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
        let (size, work, threads) = (size(x, w), self.work(), self.threads());
        match self.model.choice.weights {
            Precision::Fp32 => products::forward(x, self.weight::<f32>(w), added, y, size, work, threads),
            Precision::Bf16 => products::forward(x, self.weight::<Bf16>(w), added, y, size, work, threads),
        }
    }

    pub(super) fn product_backward(&self, dy: &[T], w: Place, dx: &mut [T]) {
        let (size, work, threads) = (size(dx, w), self.work(), self.threads());
        match self.model.choice.weights {
            Precision::Fp32 => products::backward(dy, self.weight::<f32>(w), dx, size, work, threads),
            Precision::Bf16 => products::backward(dy, self.weight::<Bf16>(w), dx, size, work, threads),
        }
    }

    /// Adds the gradient of a weight, from the batch's tokens from `first` on.
    pub(super) fn accumulate(&self, dy: &[T], x: &[T], w: Place, first: usize) {
        if !self.model.has_8bit_grads() {
            let grad = self.placed(self.model.layout.matrix_grads, w);
            return products::accumulate(dy, x, grad, size(x, w), self.work(), self.threads());
        }
        let unit = self.unit_tokens();
        let parts = dy.chunks(unit * w.rows).zip(x.chunks(unit * w.columns)).enumerate();
        for (number, (dy, x)) in parts {
            // SAFETY: see above.
            let grad = unsafe { self.model.grad_codes(w.range()) };
            let rounding = self.model.rounding(Rounded::Product, first + number * unit, w.start);
            products::accumulate_merged(dy, x, grad, rounding, size(x, w), self.work(), self.threads());
        }
    }

    /// Tokens whose gradients are summed before they are rounded to 8 bits.
    fn unit_tokens(&self) -> usize {
        self.model.choice.unit * self.batch.seq_len
    }

    /// Some tokens at a time, whose logits exist at once. Gradients in 8 bits are rounded after each, so none of them has
    /// tokens of two units.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (tokens, chunk) = (self.tokens(), self.model.choice.chunk_tokens());
        let unit = if self.model.has_8bit_grads() { self.unit_tokens() } else { tokens };
        (0..tokens).step_by(unit).flat_map(move |first| {
            let end = tokens.min(first + unit);
            (first..end).step_by(chunk).map(move |start| start..end.min(start + chunk))
        })
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

fn copy<A: Element, B: Element>(from: &[A], to: &mut [B]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = B::narrow(from.widen());
    }
}

/// Of the product of a matrix of inputs with a weight.
fn size<T>(x: &[T], w: Place) -> products::Size {
    products::Size { rows: x.len() / w.columns, inner: w.columns, columns: w.rows }
}
