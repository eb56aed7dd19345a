//! Which keys a query sees.

use super::block::PANEL;
use crate::kernels::{LANES, Line, Vector};
use std::ops::Range;

/// Queries of a panel.
pub const QUERIES: usize = PANEL * LANES;
/// Keys of a block. The softmax of a query is computed block by block, so this decides its bits.
pub const KEYS: usize = 64;

/// The document of tokens at the beginning of a sequence that all documents of it see.
pub const SHARED: i64 = -1;

/// The keys that a panel of queries sees. All positions are from the beginning of the sequence.
pub struct Seen {
    /// The position of the first query.
    first: usize,
    /// Queries in the sequence; the others of the panel are ignored.
    pub count: usize,
    /// The beginning of each query's document.
    starts: [Line; PANEL],
    /// The beginnings of the first and the last query's document.
    range: [usize; 2],
    /// So many tokens at the beginning are seen by all documents.
    shared: usize,
}

impl Seen {
    /// For the queries from `first` on. `documents` are those of the sequence.
    pub fn new(first: usize, seq_len: usize, documents: Option<&[i64]>) -> Seen {
        let count = QUERIES.min(seq_len - first);
        let mut starts = [Line([0.0; LANES]); PANEL];
        let mut range = [0; 2];
        let mut shared = 0;
        if let Some(documents) = documents {
            shared = documents.iter().take_while(|&&document| document == SHARED).count();
            let own = documents[first];
            range[0] = documents[..first].iter().rposition(|&other| other != own).map_or(0, |last| last + 1);
            range[1] = range[0];
            for query in 0..QUERIES {
                let position = first + query;
                if query > 0 && query < count && documents[position] != documents[position - 1] {
                    range[1] = position;
                }
                starts[query / LANES].0[query % LANES] = range[1] as f32;
            }
        }
        Seen { first, count, starts, range, shared }
    }

    pub fn first(&self) -> usize {
        self.first
    }

    /// How many keys of a block some query sees, counted from the block's beginning; 0 if none.
    pub fn keys(&self, block: usize) -> usize {
        let start = block * KEYS;
        match start < self.shared || self.range[0] < start + KEYS {
            true => KEYS.min((self.first + self.count).saturating_sub(start)),
            false => 0,
        }
    }

    /// From the first block with keys that some query sees to the last.
    pub fn blocks(&self) -> Range<usize> {
        let start = if self.shared > 0 { 0 } else { self.range[0] };
        start / KEYS..(self.first + self.count).div_ceil(KEYS)
    }

    /// Whether every query sees this key.
    #[inline(always)]
    pub fn all_see(&self, key: usize) -> bool {
        (self.range[1] <= key || key < self.shared) && key <= self.first
    }

    /// `scores` of a line of queries with this key, or minus infinity where a query does not see it.
    #[inline(always)]
    pub fn hide<V: Vector>(&self, key: usize, line: usize, scores: V) -> V {
        let mut positions = [0.0; LANES];
        for (lane, position) in positions.iter_mut().enumerate() {
            *position = (self.first + line * LANES + lane) as f32;
        }
        let (at, hidden) = (V::splat(key as f32), V::splat(f32::NEG_INFINITY));
        let scores = V::choose_at_most(at, V::load_f32(&positions), scores, hidden);
        if key < self.shared {
            return scores;
        }
        V::choose_at_most(V::load_f32(&self.starts[line].0), at, scores, hidden)
    }
}
