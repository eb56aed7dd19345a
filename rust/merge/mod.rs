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
mod top;
pub mod vocabulary;

use crate::bpe::{Rules, Scratch, apply};
use crate::crew::{Progress, Stage, Watch};
use crate::error::Result;
use phase::{End, Limits, PAIR_BYTES};
use segments::Segments;
use sketch::Sketch;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use store::PieceStore;
use top::Top;
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

/// How one phase went.
#[derive(Debug, Clone, Copy)]
pub struct PhaseNote {
    pub wanted: u64,
    pub threshold: u64,
    /// Of the segments, as their share reckons it.
    pub bytes: u64,
    pub merges: u64,
}

/// How far below the most frequent pair a phase reaches. On 123 MB of natural text and 618 MB of code 48
/// and 200 held two to three times the segments and were no faster.
const REACH: u64 = 16;

pub fn learn(
    store: &mut PieceStore,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<(Vocabulary, Vec<PhaseNote>)> {
    let mut vocabulary = Vocabulary::of_bytes();
    let limits = Limits {
        tokens: settings.tokens,
        max_token_bytes: settings.max_token_bytes,
        tie_break: settings.tie_break,
        memory: 0,
    };
    let floor = settings.min_frequency.max(1);
    let mut sketch = Sketch::new(sketch_bits(settings.memory));
    let mut phases = Vec::new();
    let mut replayed = 0;
    let mut ceiling = u64::MAX;
    let mut foresight = Foresight::default();
    let mut counted = false;
    progress.enter(Stage::Merging, settings.tokens as u64);
    progress.done.store(vocabulary.len() as u64, Relaxed);
    while vocabulary.len() < settings.tokens {
        replay(store, &vocabulary.merges[replayed..], &mut sketch, settings, progress, watch)?;
        replayed = vocabulary.merges.len();
        let largest = sketch.largest().min(ceiling);
        if largest < floor {
            break;
        }
        let wanted = (largest / REACH).max(foresight.last_count(settings.tokens)).max(floor);
        let mut alive = if counted {
            Alive::Counted(Top::find(store, &vocabulary, settings, progress, watch)?)
        } else {
            sketch.set_threshold(wanted);
            Alive::Bounded(&mut sketch, wanted)
        };
        // Of a text of long runs tokens may be long: what they take is missing here.
        let room = settings.memory.saturating_sub(vocabulary.long_bytes()).max(settings.memory / 4);
        let gathered = gather(store, &vocabulary, &mut alive, settings, room, progress, watch)?;
        let threshold = alive.threshold();
        let Some(segments) = gathered else {
            // It is the next merge for certain: the pieces have it from the next replay.
            if let Alive::Counted(top) = &alive {
                let (left, right) = top.first();
                vocabulary.merge(left, right);
            }
            phases.push(PhaseNote { wanted, threshold, bytes: 0, merges: 1 });
            progress.done.store(vocabulary.len() as u64, Relaxed);
            continue;
        };
        let one_only = matches!(&alive, Alive::Counted(top) if top.one_only);
        let tokens = if one_only { vocabulary.len() + 1 } else { settings.tokens };
        let bytes = segments.bytes() as u64;
        // Segments alone may fill the room; a quarter more is for pairs that are made on the way.
        let limits = Limits { tokens, memory: room + room / 4, ..limits };
        let end = phase::run(segments, threshold, &limits, &mut vocabulary, progress, watch)?;
        let merges = (vocabulary.merges.len() - replayed) as u64;
        phases.push(PhaseNote { wanted, threshold, bytes, merges });
        match end {
            End::Full | End::Duplicate | End::Outgrown => {}
            End::Threshold if threshold == floor => break,
            // Raised past every real count: the sketch is too coarse for this share.
            End::Threshold if threshold > wanted && merges == 0 => counted = true,
            End::Threshold => {
                ceiling = threshold - 1;
                foresight.note(&vocabulary, threshold);
            }
        }
    }
    Ok((vocabulary, phases))
}

/// An eighth of the memory, between 64 Ki cells and 1 Mi cells of 8 bytes: more would not fit the
/// caches, and the pairs below a threshold rarely add up to it in one cell of a million.
fn sketch_bits(memory: usize) -> u32 {
    (memory / 64).max(1).ilog2().clamp(16, 20)
}

/// Guesses how frequent the last merge will be, so that the last phase need not reach far below it.
/// Counts fall as a power of the number of merges; the last two phases tell which. A guess too high costs
/// one more phase, one too low some memory: neither changes a merge.
#[derive(Default)]
struct Foresight {
    seen: Vec<(f64, f64)>,
}

impl Foresight {
    fn note(&mut self, vocabulary: &Vocabulary, threshold: u64) {
        self.seen.push(((vocabulary.len() as f64).ln(), (threshold as f64).ln()));
    }

    fn last_count(&self, tokens: usize) -> u64 {
        let [.., a, b] = self.seen[..] else { return 0 };
        if b.0 - a.0 < 0.1 {
            return 0;
        }
        let slope = (b.1 - a.1) / (b.0 - a.0);
        let last = b.1 + slope * ((tokens as f64).ln() - b.0);
        (last.exp() * 0.6) as u64
    }
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

/// Which pairs a phase may merge.
enum Alive<'a> {
    /// Those whose bound reaches the threshold.
    Bounded(&'a mut Sketch, u64),
    Counted(Top),
}

impl Alive<'_> {
    #[inline(always)]
    fn has(&self, left: u32, right: u32) -> bool {
        match self {
            Alive::Bounded(sketch, _) => sketch.alive(left, right),
            Alive::Counted(top) => top.alive(left, right),
        }
    }

    fn threshold(&self) -> u64 {
        match self {
            Alive::Bounded(_, threshold) => *threshold,
            Alive::Counted(top) => top.threshold,
        }
    }

    /// Makes them fewer, by a higher threshold. False when there is but one.
    fn raise(&mut self) -> bool {
        match self {
            Alive::Bounded(sketch, threshold) => {
                *threshold = sketch.halve(*threshold);
                sketch.set_threshold(*threshold);
                true
            }
            Alive::Counted(top) => top.halve(),
        }
    }
}

/// Collects the segments of the pairs that are alive; where they outgrow `memory`, of fewer of them. `None` where those
/// of the first pair alone do: it stands in runs of very many lengths.
#[allow(clippy::too_many_arguments)]
fn gather(
    store: &mut PieceStore,
    vocabulary: &Vocabulary,
    alive: &mut Alive<'_>,
    settings: &Settings,
    memory: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Option<Segments>> {
    let mut segments = Segments::default();
    let short = |left, right| vocabulary.merged_length(left, right) <= settings.max_token_bytes;
    let next = AtomicUsize::new(0);
    loop {
        let over = AtomicBool::new(false);
        let (gathered, pairs) = (&segments, &*alive);
        let add = |key: &mut Vec<u8>, symbols: &mut Vec<u32>, count: u64| {
            gathered.add(symbols, count, |left, right| pairs.has(left, right) && short(left, right), key);
            if gathered.bytes() > memory {
                over.store(true, Relaxed);
            }
        };
        store.pass(settings.threads, progress, watch, false, &next, &over, Vec::new, add)?;
        let over = over.into_inner();
        // Where pairs hardly repeat, they take more than the places that they stand in.
        let most = memory.saturating_sub(segments.bytes()).max(memory / 2) / PAIR_BYTES;
        if !over && segments.pairs_within(most) {
            return Ok(Some(segments));
        }
        let enough = |segments: &Segments| {
            if over { segments.bytes() <= memory / 2 } else { segments.pairs_within(most) }
        };
        while !enough(&segments) {
            if !alive.raise() {
                return Ok(None);
            }
            segments.recut(|left, right| alive.has(left, right) && short(left, right));
        }
        if !over {
            return Ok(Some(segments));
        }
    }
}

/// Shows every piece to `each`, unless `stop` is set.
fn pass_all(
    store: &mut PieceStore,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
    stop: &AtomicBool,
    each: impl Fn(&mut Vec<u8>, &mut Vec<u32>, u64) + Sync,
) -> Result<()> {
    store.pass(settings.threads, progress, watch, false, &AtomicUsize::new(0), stop, Vec::new, each)
}
