//! The KV cache: keys and values of earlier tokens, allocated once.
//!
//! Keys are stored in panels of sixteen tokens, `panel[i][token]`, so that sixteen scores are computed at once and each
//! is one chain over the width of a head. Values are rows, padded to whole vectors.

use super::shape::Shape;
use crate::kernels::{Element, LANES, Line};
use std::alloc::{Layout, alloc_zeroed};

/// The system has no memory left.
#[derive(Debug)]
pub struct OutOfMemory;

/// So many zeros, whose pages are resident only once they are used.
pub fn zeros<T: Element>(count: usize) -> Result<Vec<T>, OutOfMemory> {
    // SAFETY: elements are numbers, for which zero bits are a 0, and so is `T::default()`.
    unsafe { zeroed(count) }
}

/// The same for scratch memory.
pub fn zero_lines(count: usize) -> Result<Vec<Line>, OutOfMemory> {
    // SAFETY: lines are numbers.
    unsafe { zeroed(count) }
}

/// # Safety
/// Zero bits are a valid `T`.
unsafe fn zeroed<T>(count: usize) -> Result<Vec<T>, OutOfMemory> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<T>(count).map_err(|_| OutOfMemory)?;
    // SAFETY: the size is not 0.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return Err(OutOfMemory);
    }
    // SAFETY: just allocated with this layout, and initialized.
    Ok(unsafe { Vec::from_raw_parts(start, count, count) })
}

#[derive(Clone, Copy, Debug)]
pub struct CacheSizes {
    pub rows: usize,
    /// Tokens of a row.
    pub capacity: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    layers: usize,
}

impl CacheSizes {
    pub fn new(shape: &Shape, rows: usize, capacity: usize) -> CacheSizes {
        let Shape { layers, kv_heads, head_width, .. } = *shape;
        CacheSizes { rows, capacity, kv_heads, head_width, layers }
    }

    /// The stride of values.
    pub fn value_width(&self) -> usize {
        self.head_width.next_multiple_of(LANES)
    }

    /// Elements of one head of one row.
    pub fn head_keys(&self) -> usize {
        self.capacity.next_multiple_of(LANES) * self.head_width
    }

    pub fn head_values(&self) -> usize {
        self.capacity * self.value_width()
    }

    fn layer_keys(&self) -> usize {
        self.rows * self.kv_heads * self.head_keys()
    }

    fn layer(&self) -> usize {
        self.layer_keys() + self.rows * self.kv_heads * self.head_values()
    }

    pub fn elements(&self) -> usize {
        self.layers * self.layer()
    }
}

pub struct Cache<T> {
    pub sizes: CacheSizes,
    held: Vec<T>,
    /// Tokens of each row that have passed all layers.
    pub length: usize,
}

impl<T: Element> Cache<T> {
    pub fn new(sizes: CacheSizes) -> Result<Cache<T>, OutOfMemory> {
        Ok(Cache { sizes, held: zeros(sizes.elements())?, length: 0 })
    }

    /// The keys and values of a layer: row by row, and in a row head by head.
    pub fn layer(&self, layer: usize) -> (&[T], &[T]) {
        let all = &self.held[layer * self.sizes.layer()..][..self.sizes.layer()];
        all.split_at(self.sizes.layer_keys())
    }

    /// Adds a token of a row to a layer; `keys` and `values` have all heads.
    pub fn add(&mut self, layer: usize, row: usize, position: usize, keys: &[T], values: &[T]) {
        let sizes = self.sizes;
        assert!(row < sizes.rows && position < sizes.capacity);
        let all = &mut self.held[layer * sizes.layer()..][..sizes.layer()];
        let (held_keys, held_values) = all.split_at_mut(sizes.layer_keys());
        let width = sizes.head_width;
        for head in 0..sizes.kv_heads {
            let index = row * sizes.kv_heads + head;
            let panel = &mut held_keys[index * sizes.head_keys()..][position / LANES * LANES * width..];
            for (to, from) in panel.chunks_exact_mut(LANES).zip(&keys[head * width..][..width]) {
                to[position % LANES] = *from;
            }
            let start = index * sizes.head_values() + position * sizes.value_width();
            held_values[start..][..width].copy_from_slice(&values[head * width..][..width]);
        }
    }

    /// Copies the first row to all others.
    pub fn spread(&mut self) {
        let sizes = self.sizes;
        let used_keys = self.length.next_multiple_of(LANES) * sizes.head_width;
        let used_values = self.length * sizes.value_width();
        for layer in 0..sizes.layers {
            let keys = layer * sizes.layer();
            self.spread_heads(keys, sizes.head_keys(), used_keys);
            self.spread_heads(keys + sizes.layer_keys(), sizes.head_values(), used_values);
        }
    }

    fn spread_heads(&mut self, start: usize, head: usize, used: usize) {
        let heads = self.sizes.kv_heads;
        for to in heads..self.sizes.rows * heads {
            let from = start + to % heads * head;
            self.held.copy_within(from..from + used, start + to * head);
        }
    }
}
