//! Where activations are. Those of different moments share their memory:
//!
//! ```text
//! kept:       the input of every layer, what each layer keeps for its backward pass, the last norm's result
//! then one of
//!   forward   queries and keys with QK-norm; or the gated product
//!   head      the logits of a chunk; with activation checkpointing they also take the place of what a layer keeps
//!   backward  the gradient of the residual stream, with what one block needs; the queries', keys' and values'
//!             gradients take the place of the layer's gate and up, which are used up by then
//! ```

use super::arena::Span;
use super::choice::{Choice, Precision};
use super::layout::{Cursor, has_8bit_grads};
use super::shape::Shape;
use crate::attention;
use crate::kernels::{Bf16, Line};
use crate::products;

/// Numbers that attention keeps for each token and head.
pub const STATS: usize = 2;

/// What a layer keeps besides its input.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub qkv: Span,
    pub attended: Span,
    pub stats: Span,
    /// The input of the feed-forward block.
    pub middle: Span,
    pub gate_up: Span,
    /// In the place of `gate_up`, or in scratch memory if they are larger.
    pub d_qkv: Span,
    pub d_attended: Span,
}

#[derive(Clone, Debug)]
pub struct Activations {
    /// 0, 1, 2, ... for every sequence.
    pub positions: Span,
    /// Of a chunk.
    pub losses: Span,
    /// Scratch memory of products and attention.
    pub work: Span,
    /// How many bytes of it are ever written.
    pub written: usize,
    /// The residual stream before each layer, and behind the last.
    pub inputs: Vec<Span>,
    pub layers: Vec<Kept>,
    pub normed: Span,
    /// Queries and keys with QK-norm and rotated.
    pub qk: Span,
    pub act: Span,
    pub logits: Span,
    /// The gradient of the residual stream.
    pub grad: Span,
    /// What a norm adds to it.
    pub change: Span,
    /// Of a block's result, with dropout.
    pub attention_branch: Span,
    pub feed_forward_branch: Span,
    /// Of everything but the logits.
    pub end: usize,
    pub logits_end: usize,
}

impl Activations {
    pub fn new(shape: &Shape, choice: &Choice, mut cursor: Cursor) -> Activations {
        let tokens = choice.tokens();
        let rows = |columns: usize| tokens * columns * choice.compute.bytes();
        let stream = rows(shape.width);
        let (qkv, queries) = (rows(shape.qkv_width()), rows(shape.queries_width()));
        let (gate_up, act) = (rows(2 * shape.feed_forward), rows(shape.feed_forward));
        let stats = tokens * shape.heads * STATS * 4;
        let qk = if shape.qk_norm { rows(shape.queries_width() + shape.keys_width()) } else { 0 };
        let branch = if choice.training && choice.dropout > 0.0 { stream } else { 0 };

        let positions = cursor.add(tokens * 8);
        let losses = cursor.add(choice.chunk_tokens() * 4);
        let work = cursor.add(work_lines(shape, choice) * size_of::<Line>());
        let written = written_lines(shape, choice) * size_of::<Line>();
        debug_assert!(written <= work.bytes);
        let normed = cursor.add(stream);
        if !choice.training {
            let forward = Activations::forward_only(shape, choice, cursor, (positions, losses, work, normed));
            return Activations { written, ..forward };
        }
        let inputs = (0..=shape.layers).map(|_| cursor.add(stream)).collect();
        let before_layers = cursor;
        let mut keep = || Kept {
            qkv: cursor.add(qkv),
            attended: cursor.add(queries),
            stats: cursor.add(stats),
            middle: cursor.add(stream),
            gate_up: cursor.add(gate_up),
            d_qkv: Span::default(),
            d_attended: Span::default(),
        };
        let mut layers: Vec<Kept> = match choice.recompute {
            true => vec![keep(); shape.layers],
            false => (0..shape.layers).map(|_| keep()).collect(),
        };

        // With activation checkpointing, nothing of a layer is needed before the backward pass recomputes it.
        let mut head = if choice.recompute { before_layers } else { cursor };
        let logits = head.add(choice.chunk_tokens() * shape.padded_vocab() * choice.compute.bytes());
        let grad = cursor.add(stream);
        // All of these begin at the same place, for different moments.
        let mut feed_forward = cursor;
        let act = feed_forward.add(act);
        let feed_forward_branch = feed_forward.add(branch);
        let mut added = cursor;
        let change = added.add(stream);
        let mut attention = cursor;
        let attention_branch = Span { start: attention.at, bytes: branch };
        let qk = attention.add(qk.max(branch));
        for layer in &mut layers {
            let mut beyond = attention;
            let mut inside = Cursor { at: layer.gate_up.start };
            for (place, bytes) in [(&mut layer.d_qkv, qkv), (&mut layer.d_attended, queries)] {
                let fits = inside.at + bytes <= layer.gate_up.end();
                *place = if fits { inside.add(bytes) } else { beyond.add(bytes) };
            }
            cursor.extend(beyond);
        }
        cursor.extend(feed_forward);
        cursor.extend(added);
        let (end, logits_end) = (cursor.at, head.at);
        Activations {
            positions,
            losses,
            work,
            written,
            inputs,
            layers,
            normed,
            qk,
            act,
            logits,
            grad,
            change,
            attention_branch,
            feed_forward_branch,
            end,
            logits_end,
        }
    }

    /// Attention, the feed-forward block and the head share their memory too.
    fn forward_only(
        shape: &Shape,
        choice: &Choice,
        mut cursor: Cursor,
        (positions, losses, work, normed): (Span, Span, Span, Span),
    ) -> Activations {
        let tokens = choice.tokens();
        let rows = |columns: usize| tokens * columns * choice.compute.bytes();
        let (input, middle) = (cursor.add(rows(shape.width)), cursor.add(rows(shape.width)));
        let [mut attention, mut feed_forward, mut head] = [cursor; 3];
        let kept = Kept {
            qkv: attention.add(rows(shape.qkv_width())),
            attended: attention.add(rows(shape.queries_width())),
            stats: attention.add(tokens * shape.heads * STATS * 4),
            middle,
            gate_up: feed_forward.add(rows(2 * shape.feed_forward)),
            d_qkv: Span::default(),
            d_attended: Span::default(),
        };
        let qk_columns = if shape.qk_norm { shape.queries_width() + shape.keys_width() } else { 0 };
        let qk = attention.add(rows(qk_columns));
        let act = feed_forward.add(rows(shape.feed_forward));
        let logits = head.add(choice.chunk_tokens() * shape.padded_vocab() * choice.compute.bytes());
        attention.extend(feed_forward);
        let none = Span::default();
        Activations {
            positions,
            losses,
            work,
            written: work.bytes,
            inputs: vec![input; shape.layers + 1],
            layers: vec![kept; shape.layers],
            normed,
            qk,
            act,
            logits,
            grad: none,
            change: none,
            attention_branch: none,
            feed_forward_branch: none,
            end: attention.at,
            logits_end: head.at,
        }
    }
}

/// The products of so many tokens, whose logits are computed for so many at once.
fn sizes(shape: &Shape, tokens: usize, chunk: usize) -> [products::Size; 5] {
    let (width, queries, ff) = (shape.width, shape.queries_width(), shape.feed_forward);
    [
        (tokens, width, shape.qkv_width()),
        (tokens, queries, width),
        (tokens, width, 2 * ff),
        (tokens, ff, width),
        (chunk, width, shape.padded_vocab()),
    ]
    .map(|(rows, inner, columns)| products::Size { rows, inner, columns })
}

/// Of the largest call of a product or of attention.
fn work_lines(shape: &Shape, choice: &Choice) -> usize {
    let tokens = choice.tokens();
    let sizes = sizes(shape, tokens, choice.chunk_tokens());
    let merged = choice.training && has_8bit_grads(shape, choice);
    let products = sizes.map(|size| {
        let merging = if merged { products::merged_scratch(size, choice.threads) } else { 0 };
        products::scratch(size, choice.threads).max(merging)
    });
    let attention = attention::scratch(attention_sizes(shape, choice.seq_len), tokens, choice.threads);
    products.into_iter().fold(attention, usize::max)
}

/// Of these, what passes over any number of sequences write.
fn written_lines(shape: &Shape, choice: &Choice) -> usize {
    let merged = choice.training && has_8bit_grads(shape, choice);
    let attention =
        attention::scratch(attention_sizes(shape, choice.seq_len), choice.tokens(), choice.threads);
    let one = |size: products::Size| match choice.compute {
        Precision::Fp32 => products::written_scratch::<f32>(size, choice.training, merged, choice.threads),
        Precision::Bf16 => products::written_scratch::<Bf16>(size, choice.training, merged, choice.threads),
    };
    let passes = (1..=choice.micro_batch).flat_map(|sequences| {
        let tokens = sequences * choice.seq_len;
        let chunk = choice.chunk_tokens().min(tokens);
        sizes(shape, tokens, chunk).into_iter().chain(sizes(shape, 0, tokens % chunk))
    });
    passes.map(one).fold(attention, usize::max)
}

pub fn attention_sizes(shape: &Shape, seq_len: usize) -> attention::Sizes {
    let Shape { heads, kv_heads, head_width: width, .. } = *shape;
    attention::Sizes { seq_len, heads, kv_heads, width }
}
