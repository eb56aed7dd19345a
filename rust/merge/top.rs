//! The most frequent pairs, exactly, in as many passes as the memory requires.
//!
//! For cases in which the sketch is too coarse: with a small share and many pairs of nearly equal counts, its cells
//! contain mostly collisions, and a threshold raised by them can exceed every real count. Here the pairs are counted
//! exactly, a part of them (by hash) at a time.

use super::segments::Segments;
use super::store::PieceStore;
use super::vocabulary::Vocabulary;
use super::{Settings, pass_all};
use crate::crew::{Progress, Watch};
use crate::error::Result;
use crate::pairs::{NONE, PairMap, hash, key};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// How many pairs to keep: a phase rarely merges more before it needs new ones.
const KEPT: usize = 4096;

/// The pairs that a phase may merge, in the order in which they are merged.
pub struct Top {
    pairs: Vec<(u64, u32, u32)>,
    index: PairMap,
    /// Every pair of at least this count is included.
    pub threshold: u64,
    /// The exception: only the first pair is included, and others of the same count are not.
    pub one_only: bool,
}

impl Top {
    pub fn find(
        store: &mut PieceStore,
        vocabulary: &Vocabulary,
        settings: &Settings,
        progress: &Progress,
        watch: &mut Watch<'_>,
    ) -> Result<Top> {
        let mut parts = 1;
        loop {
            match Top::find_in(parts, store, vocabulary, settings, progress, watch)? {
                Some(top) => return Ok(top),
                None => parts *= 2,
            }
        }
    }

    /// `None` if one of the `parts` does not fit into the memory.
    fn find_in(
        parts: u64,
        store: &mut PieceStore,
        vocabulary: &Vocabulary,
        settings: &Settings,
        progress: &Progress,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Top>> {
        let mut best: Vec<(u64, u32, u32)> = Vec::new();
        let mut dropped = settings.min_frequency.saturating_sub(1);
        for part in 0..parts {
            let counts = Segments::default();
            let full = AtomicBool::new(false);
            pass_all(store, settings, progress, watch, &full, |key_buffer, symbols, count| {
                for pair in symbols.windows(2) {
                    let (left, right) = (pair[0], pair[1]);
                    let mine = hash(key(left, right)) % parts == part;
                    if mine && vocabulary.merged_length(left, right) <= settings.max_token_bytes {
                        counts.add(pair, count, |_, _| true, key_buffer);
                    }
                }
                if counts.bytes() > settings.memory {
                    full.store(true, Relaxed);
                }
            })?;
            if full.into_inner() {
                return Ok(None);
            }
            counts.drain(|mut symbols, count| {
                let left = symbols.next().expect("a pair has two symbols");
                let right = symbols.next().expect("a pair has two symbols");
                if count >= settings.min_frequency {
                    best.push((count, left, right));
                }
                if best.len() >= 4 * KEPT {
                    dropped = dropped.max(shorten(&mut best, vocabulary, settings));
                }
            });
        }
        dropped = dropped.max(shorten(&mut best, vocabulary, settings));
        Ok(Some(Top::new(best, dropped)))
    }

    /// Keeps the pairs that are more frequent than any that was dropped; if there are none, the first.
    fn new(mut pairs: Vec<(u64, u32, u32)>, dropped: u64) -> Top {
        let certain = pairs.partition_point(|&(count, _, _)| count > dropped);
        let one_only = certain == 0 && !pairs.is_empty();
        let threshold = if one_only { pairs[0].0 } else { dropped + 1 };
        pairs.truncate(certain.max(1));
        let mut index = PairMap::with_capacity(pairs.len());
        for &(_, left, right) in &pairs {
            index.set(left, right, 0);
        }
        Top { pairs, index, threshold, one_only }
    }

    /// The pair that is merged first.
    pub fn first(&self) -> (u32, u32) {
        let (_, left, right) = self.pairs[0];
        (left, right)
    }

    #[inline]
    pub fn alive(&self, left: u32, right: u32) -> bool {
        self.index.get(left, right) != NONE
    }

    /// Keeps about half of the pairs, at least the first, for segments that fit. False if there is only one.
    pub fn halve(&mut self) -> bool {
        let pairs = std::mem::take(&mut self.pairs);
        let fewer = pairs.len() > 1;
        let dropped = pairs[pairs.len() / 2].0;
        *self = Top::new(pairs, dropped);
        fewer
    }
}

/// Sorts by merge order, truncates to `KEPT`, and returns the greatest count among those dropped.
fn shorten(pairs: &mut Vec<(u64, u32, u32)>, vocabulary: &Vocabulary, settings: &Settings) -> u64 {
    pairs.sort_unstable_by(|a, b| {
        b.0.cmp(&a.0).then_with(|| vocabulary.order(settings.tie_break, (b.1, b.2), (a.1, a.2)))
    });
    let dropped = pairs.get(KEPT).map_or(0, |&(count, _, _)| count);
    pairs.truncate(KEPT);
    dropped
}
