//! The sizes of a model, and where each weight is in the two flat arrays: matrices, and the gains of the norms.

use crate::products::SHARED;
use std::ops::Range;

/// As `ramlet.model.shape.Shape`, which has checked it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub vocab: usize,
    pub context: usize,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub feed_forward: usize,
    pub eps: f32,
    pub tied: bool,
    pub qk_norm: bool,
}

const VOCABULARY_MULTIPLE: usize = 64;

/// In the flat arrays every weight starts at a multiple of this many elements, the block of the 8-bit optimizers.
pub const ALIGNMENT: usize = 256;

impl Shape {
    /// Whether the rows of all matrices, and of the parts of fused ones, are whole blocks of gradients in 8 bits.
    pub fn has_whole_blocks(&self) -> bool {
        let sizes = [self.width, self.queries_width(), self.keys_width(), self.feed_forward];
        sizes.iter().all(|size| size.is_multiple_of(SHARED))
    }

    pub fn padded_vocab(&self) -> usize {
        self.vocab.next_multiple_of(VOCABULARY_MULTIPLE)
    }

    pub fn queries_width(&self) -> usize {
        self.heads * self.head_width
    }

    pub fn keys_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    pub fn qkv_width(&self) -> usize {
        self.queries_width() + 2 * self.keys_width()
    }
}

/// A weight in its flat array; gains have one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub start: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Place {
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.columns
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LayerPlaces {
    pub norm_attention: Place,
    /// Queries, keys and values, one below the other.
    pub qkv: Place,
    pub out: Place,
    pub norm_q: Option<Place>,
    pub norm_k: Option<Place>,
    pub norm_feed_forward: Place,
    /// Gate, then up.
    pub gate_up: Place,
    pub down: Place,
}

#[derive(Clone, Debug)]
pub struct Places {
    pub embedding: Place,
    /// The embedding if it is tied.
    pub head: Place,
    pub layers: Vec<LayerPlaces>,
    pub norm: Place,
    /// Elements of the flat arrays.
    pub matrices: usize,
    pub gains: usize,
    /// Where the embeddings end and the layers begin among the matrices.
    pub hidden: usize,
}

impl Places {
    pub fn new(shape: &Shape) -> Places {
        let (mut matrices, mut gains) = (Flat::default(), Flat::default());
        let embedding = matrices.add(shape.padded_vocab(), shape.width);
        let head = if shape.tied { embedding } else { matrices.add(shape.padded_vocab(), shape.width) };
        let hidden = matrices.end.next_multiple_of(ALIGNMENT);
        let layers = (0..shape.layers)
            .map(|_| LayerPlaces {
                norm_attention: gains.add(1, shape.width),
                qkv: matrices.add(shape.qkv_width(), shape.width),
                out: matrices.add(shape.width, shape.queries_width()),
                norm_q: shape.qk_norm.then(|| gains.add(1, shape.head_width)),
                norm_k: shape.qk_norm.then(|| gains.add(1, shape.head_width)),
                norm_feed_forward: gains.add(1, shape.width),
                gate_up: matrices.add(2 * shape.feed_forward, shape.width),
                down: matrices.add(shape.width, shape.feed_forward),
            })
            .collect();
        let norm = gains.add(1, shape.width);
        Places { embedding, head, layers, norm, matrices: matrices.end, gains: gains.end, hidden }
    }
}

#[derive(Default)]
struct Flat {
    end: usize,
}

impl Flat {
    fn add(&mut self, rows: usize, columns: usize) -> Place {
        let start = self.end.next_multiple_of(ALIGNMENT);
        self.end = start + rows * columns;
        Place { start, rows, columns }
    }
}
