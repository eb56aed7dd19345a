//! Counted pieces -> merges, exactly, in bounded memory: phases over a falling threshold.
//!
//! Merging needs every occurrence of a pair at hand, and the pieces of a large corpus do not fit. But
//! the next merges are all among frequent pairs. So each phase picks a threshold, keeps only what
//! pairs at or over it can touch (`segments`: cut at the rarer pairs, equal parts counted as one),
//! merges in memory until the most frequent pair falls below the threshold, and replays those merges on
//! the pieces in one pass. A lower threshold means fewer passes and more memory; when the segments
//! outgrow their share the threshold is raised on the spot. The merges are the same in any case:
//! every pair that can reach the threshold is counted in full. docs/design/bpe-merging.md has the proof.

pub mod phase;
pub mod segments;
pub mod sketch;
pub mod store;
#[cfg(test)]
mod tests;
pub mod vocabulary;

use crate::bpe::{Rules, Scratch, apply};
use crate::crew::{Progress, Stage, Watch};
use crate::error::{Error, Result};
use phase::{End, Limits};
use segments::Segments;
use sketch::Sketch;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use store::PieceStore;
use vocabulary::{TieBreak, Vocabulary};

pub struct Settings {
    /// Tokens to have at the end, the 256 bytes included.
    pub tokens: usize,
    pub min_frequency: u64,
    pub max_token_bytes: usize,
    pub tie_break: TieBreak,
    pub threads: usize,
    /// Bytes for segments and the phase over them.
    pub memory: usize,
}

/// How the work went, for the statistics.
#[derive(Default, Debug, Clone, Copy)]
pub struct Course {
    pub phases: u64,
    pub duplicates: u64,
    pub raised: u64,
}

/// How far below the most frequent pair a phase reaches at first. Measured: wider phases hold more
/// segments than they save in passes.
const REACH: u64 = 48;

pub fn learn(
    store: &mut PieceStore,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<(Vocabulary, Course)> {
    let mut vocabulary = Vocabulary::of_bytes();
    let limits = Limits {
        tokens: settings.tokens,
        max_token_bytes: settings.max_token_bytes,
        tie_break: settings.tie_break,
    };
    let floor = settings.min_frequency.max(1);
    let mut sketch = Sketch::new(sketch_bits(settings.memory));
    let mut course = Course::default();
    let mut replayed = 0;
    let mut ceiling = u64::MAX;
    progress.enter(Stage::Merging, settings.tokens as u64);
    progress.done.store(vocabulary.len() as u64, Relaxed);
    while vocabulary.len() < settings.tokens {
        replay(store, &vocabulary.merges[replayed..], &mut sketch, settings, progress, watch)?;
        replayed = vocabulary.merges.len();
        let largest = sketch.largest().min(ceiling);
        if largest < floor {
            break;
        }
        let wanted = (largest / REACH).max(floor);
        let (segments, threshold) =
            gather(store, &vocabulary, &mut sketch, wanted, settings, progress, watch)?;
        course.phases += 1;
        course.raised += u64::from(threshold > wanted);
        match phase::run(segments, threshold, &limits, &mut vocabulary, progress, watch)? {
            End::Full => break,
            End::Duplicate => course.duplicates += 1,
            End::Threshold if threshold == floor => break,
            End::Threshold if threshold > wanted && vocabulary.merges.len() == replayed => {
                return Err(Error::Budget {
                    need: 2 * settings.memory as u64,
                    have: settings.memory as u64,
                    what: "the most frequent pairs and what stands around them".into(),
                });
            }
            End::Threshold => ceiling = threshold - 1,
        }
    }
    Ok((vocabulary, course))
}

/// An eighth of the memory, between 64 Ki cells and 4 Mi cells of 8 bytes.
fn sketch_bits(memory: usize) -> u32 {
    (memory / 64).max(1).ilog2().clamp(16, 22)
}

/// Applies the last phase's merges to every piece and sums the pairs that result.
fn replay(
    store: &mut PieceStore,
    merges: &[(u32, u32, u32)],
    sketch: &mut Sketch,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let rules = Rules::new(merges.iter().copied());
    sketch.clear();
    let sketch = &*sketch;
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    store.pass(
        settings.threads,
        progress,
        watch,
        !rules.is_empty(),
        &next,
        &stop,
        Scratch::default,
        |scratch, symbols, count| {
            if !rules.is_empty() {
                apply::<true>(&rules, symbols, scratch);
            }
            for pair in symbols.windows(2) {
                sketch.add(pair[0], pair[1], count);
            }
        },
    )
}

/// Collects the segments for a threshold of `wanted`, or the least above it at which they fit.
fn gather(
    store: &mut PieceStore,
    vocabulary: &Vocabulary,
    sketch: &mut Sketch,
    wanted: u64,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<(Segments, u64)> {
    let mut threshold = wanted;
    let mut segments = Segments::new();
    sketch.set_threshold(threshold);
    let short = |left, right| vocabulary.merged_length(left, right) <= settings.max_token_bytes;
    let next = AtomicUsize::new(0);
    loop {
        let over = AtomicBool::new(false);
        let (gathered, bounds) = (&segments, &*sketch);
        store.pass(settings.threads, progress, watch, false, &next, &over, Vec::new, |key, symbols, count| {
            gathered.add(symbols, count, |left, right| bounds.alive(left, right) && short(left, right), key);
            if gathered.bytes() > settings.memory {
                over.store(true, Relaxed);
            }
        })?;
        if !over.load(Relaxed) {
            return Ok((segments, threshold));
        }
        while segments.bytes() > settings.memory / 2 {
            threshold = sketch.halve(threshold);
            sketch.set_threshold(threshold);
            segments.recut(sketch, short);
        }
    }
}
