//! Counted pieces -> merges, exactly, in bounded memory: phases with a decreasing threshold.
//!
//! Merging needs every occurrence of a pair in memory, and the pieces of a large corpus do not fit. But the next merges
//! are all among the frequent pairs. So each phase picks a threshold, keeps only what pairs at or above it can touch
//! (`segments`: cut at the rarer pairs, equal parts counted as one), merges in memory until the most frequent pair
//! falls below the threshold, and replays those merges on the pieces in one pass. A lower threshold means fewer passes
//! and more memory; if the segments outgrow their share, the threshold is raised immediately. The merges are the same
//! in any case: every pair that can reach the threshold is counted in full. docs/design/bpe-merging.md has the proof.

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
    /// Size of the final vocabulary, including the 256 bytes.
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
    /// Memory of the segments, as estimated by `Segments::bytes`.
    pub bytes: u64,
    pub merges: u64,
}

/// The threshold of a phase is the count of the most frequent pair divided by this. On 123 MB of natural text and 618
/// MB of code, 48 and 200 took two to three times the memory for segments and were not faster.
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
    let mut fit = LastCountFit::default();
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
        let wanted = (largest / REACH).max(fit.last_count(settings.tokens)).max(floor);
        let mut alive = if counted {
            Alive::Counted(Top::find(store, &vocabulary, settings, progress, watch)?)
        } else {
            sketch.set_threshold(wanted);
            Alive::Bounded(&mut sketch, wanted)
        };
        // Text with long runs may make long tokens: their memory comes out of this share.
        let memory = settings.memory.saturating_sub(vocabulary.long_bytes()).max(settings.memory / 4);
        let gathered = gather(store, &vocabulary, &mut alive, settings, memory, progress, watch)?;
        let threshold = alive.threshold();
        let Some(segments) = gathered else {
            // The first pair is certainly the next merge; the next replay applies it to the pieces.
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
        // Segments alone may fill the share; a quarter more is for the pairs that merging makes.
        let limits = Limits { tokens, memory: memory + memory / 4, ..limits };
        let end = phase::run(segments, threshold, &limits, &mut vocabulary, progress, watch)?;
        let merges = (vocabulary.merges.len() - replayed) as u64;
        phases.push(PhaseNote { wanted, threshold, bytes, merges });
        match end {
            End::Full | End::Duplicate | End::Outgrown => {}
            End::Threshold if threshold == floor => break,
            // The threshold was raised above every real count: the sketch is too coarse for this share.
            End::Threshold if threshold > wanted && merges == 0 => counted = true,
            End::Threshold => {
                ceiling = threshold - 1;
                fit.add_phase(&vocabulary, threshold);
            }
        }
    }
    Ok((vocabulary, phases))
}

/// An eighth of the memory, between 64 Ki and 1 Mi cells of 8 bytes: more would not fit into the CPU's caches, and with
/// a million cells the pairs below a threshold rarely add up to it in one cell.
fn sketch_bits(memory: usize) -> u32 {
    (memory / 64).max(1).ilog2().clamp(16, 20)
}

/// Predicts the count of the last merge, so that the threshold of the last phase is not far below it. Counts fall as a
/// power of the number of merges; the exponent is fitted to the last two phases. A prediction that is too high costs
/// one more phase, one that is too low some memory: neither changes a merge.
#[derive(Default)]
struct LastCountFit {
    seen: Vec<(f64, f64)>,
}

impl LastCountFit {
    fn add_phase(&mut self, vocabulary: &Vocabulary, threshold: u64) {
        self.seen.push(((vocabulary.len() as f64).ln(), (threshold as f64).ln()));
    }

    fn last_count(&self, tokens: usize) -> u64 {
        let [.., a, b] = self.seen[..] else { return 0 };
        if b.0 - a.0 < 0.1 {
            return 0;
        }
        let exponent = (b.1 - a.1) / (b.0 - a.0);
        let last = b.1 + exponent * ((tokens as f64).ln() - b.0);
        (last.exp() * 0.6) as u64
    }
}

/// Applies the last phase's merges to every piece and counts the resulting pairs in the sketch.
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
    /// Pairs whose upper bound reaches the threshold.
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

    /// Raises the threshold, so that there are fewer. False if there is only one.
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

/// Collects the segments of the pairs that are alive; if they outgrow `memory`, the threshold is raised. `None` if even
/// the segments of a single pair do not fit: it occurs in runs of very many lengths.
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
        // If pairs hardly repeat, they take more memory than the segments they are in.
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

/// Calls `each` with every piece, until `stop` is set.
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
