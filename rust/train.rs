//! BPE training from end to end: count, sort, merge; and how the memory is divided among these stages.

use crate::count::{self, Counted, Feed, Totals};
use crate::count_parts;
use crate::crew::{Progress, Watch};
use crate::error::{Error, Result};
use crate::merge::vocabulary::{TieBreak, Vocabulary};
use crate::merge::{self, PhaseNote};
use crate::pages::release_freed_memory;
use crate::rss;
use crate::source::{Block, Counters, Sources};
use crate::specials::Specials;
use crate::split::Pattern;
use crate::workdir::WorkDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Settings {
    pub pattern: Pattern,
    pub specials: Arc<Specials>,
    /// Size of the vocabulary, including the 256 bytes but not the special tokens.
    pub tokens: usize,
    pub min_frequency: u64,
    pub max_token_bytes: usize,
    pub tie_break: TieBreak,
    pub threads: usize,
    /// Memory in bytes that training may add to the process.
    pub memory: usize,
    /// The part of it that a decompressor of the inputs needs at least; 0 if no input is compressed.
    pub decoding: usize,
    /// The limit on the resident memory of the whole process.
    pub resident_limit: u64,
    pub work_dir: PathBuf,
    pub signature: String,
    pub checkpoint_every: Duration,
}

pub struct Trained {
    pub vocabulary: Vocabulary,
    pub read: Counters,
    pub totals: Totals,
    pub distinct: u64,
    pub phases: Vec<PhaseNote>,
    pub seconds: [f64; 3],
}

/// How the memory is divided. Counting, merging and returning the result run one after another, so each has nearly all.
#[derive(Debug)]
pub struct Shares {
    pub block_bytes: usize,
    pub window_bytes: u64,
    pub tables: usize,
    store: usize,
    phase: usize,
}

const LEAST_TABLE: usize = 1 << 20;
const LEAST_MERGING: usize = 9 << 20;
const LEAST_BLOCK: usize = 64 << 10;
/// The window that any decompressor may have, however little memory there is.
pub const LEAST_WINDOW: usize = 8 << 20;
/// Blocks per thread while reading: its own, its lane's, and those that a long run of text without a place to cut adds.
const READING: usize = 6;
/// Not part of any share: pages of the core's code and static tables, which become resident when used.
const CODE: usize = 4 << 20;
/// Memory per thread in addition to its table and blocks: its stack, the allocator's arena with freed memory, the
/// buffer of a run being written, the chunks that a pass reads and writes, the segments of the last one.
const THREAD: usize = 3 << 19;
/// Memory per token while merging: its bytes twice, with an index that grows by doubling, its merge, the sums of its
/// neighbors, its width.
const TOKEN_BYTES: usize = 240;
/// Memory per token of the result: as above, plus its Python objects: the token, its merge, its spelling, a set entry.
const RESULT_BYTES: usize = 600;

impl Shares {
    /// The least memory that works. `decoding` is what a decompressor of the inputs needs at least; 0 if no input is
    /// compressed.
    pub fn least(threads: usize, tokens: usize, decoding: usize) -> usize {
        let counting = threads * (LEAST_TABLE + READING * LEAST_BLOCK + decoding);
        let merging = LEAST_MERGING + tokens * TOKEN_BYTES;
        fixed(threads) + counting.max(merging).max(tokens * RESULT_BYTES)
    }

    pub fn new(memory: usize, threads: usize, tokens: usize, decoding: usize) -> Result<Self> {
        let least = Self::least(threads, tokens, decoding);
        if memory < least {
            return Err(Error::Budget {
                need: least as u64,
                have: memory as u64,
                what: format!("tables and read buffers for {threads} threads and {tokens} tokens"),
            });
        }
        let memory = memory - fixed(threads);
        // What a decoder takes cannot be used for anything else.
        let share = (memory / threads).saturating_sub(decoding);
        let block_bytes = (share / 64).clamp(LEAST_BLOCK, 1 << 20);
        let merging = memory - tokens * TOKEN_BYTES;
        let window_bytes = (share / 8).clamp(LEAST_WINDOW, 128 << 20);
        let decoding = if decoding > 0 { decoding + window_bytes - LEAST_WINDOW } else { 0 };
        let reading = threads * (READING * block_bytes + decoding);
        Ok(Shares {
            block_bytes,
            window_bytes: window_bytes as u64,
            tables: (memory - reading).saturating_sub(memory / 16).max(threads * LEAST_TABLE),
            store: merging / 4,
            // More would only lower the thresholds of phases beyond what is fast (see `merge::REACH`).
            phase: (merging / 2).min(512 << 20),
        })
    }
}

fn fixed(threads: usize) -> usize {
    CODE + threads * THREAD
}

pub fn train(
    feed: &dyn Feed,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Trained> {
    rss::return_large_blocks();
    let shares = Shares::new(settings.memory, settings.threads, settings.tokens, settings.decoding)?;
    let folder = count::open_folder(&settings.work_dir, &settings.signature)?;
    let counting = count::Settings {
        pattern: &settings.pattern,
        specials: &settings.specials,
        threads: settings.threads,
        memory: shares.tables,
        // The shares leave 1/32 free; using more than half of that means that an estimate was too low.
        resident_limit: settings.resident_limit / 64 * 63,
        checkpoint_every: settings.checkpoint_every,
    };
    let started = Instant::now();
    let counted = count::count(feed, &counting, &folder, progress, watch)?;
    learn(counted, &folder, feed.counters(), settings, &shares, started, progress, watch)
}

/// Trains on what was counted in parts, in `work` (`count_parts.rs`).
pub fn train_counted(
    work: &Path,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Trained> {
    rss::return_large_blocks();
    let shares = Shares::new(settings.memory, settings.threads, settings.tokens, 0)?;
    let started = Instant::now();
    let folder = count::open_folder(&settings.work_dir, &settings.signature)?;
    let counted = count_parts::merged(work, &folder)?;
    learn(counted, &folder, Counters::default(), settings, &shares, started, progress, watch)
}

#[allow(clippy::too_many_arguments)]
fn learn(
    counted: Counted,
    folder: &WorkDir,
    read: Counters,
    settings: &Settings,
    shares: &Shares,
    started: Instant,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Trained> {
    let counting_seconds = started.elapsed().as_secs_f64();
    let totals = counted.totals.clone();
    let (mut store, distinct) =
        counted.into_store(folder, settings.threads, shares.phase, shares.store, progress, watch)?;
    release_freed_memory();
    let sorting_seconds = started.elapsed().as_secs_f64() - counting_seconds;
    let merging = merge::Settings {
        tokens: settings.tokens,
        min_frequency: settings.min_frequency,
        max_token_bytes: settings.max_token_bytes,
        tie_break: settings.tie_break,
        threads: settings.threads,
        memory: shares.phase,
    };
    let (vocabulary, phases) = merge::learn(&mut store, &merging, progress, watch)?;
    drop(store);
    release_freed_memory(); // makes space for the result
    let merging_seconds = started.elapsed().as_secs_f64() - counting_seconds - sorting_seconds;
    Ok(Trained {
        vocabulary,
        read,
        totals,
        distinct,
        phases,
        seconds: [counting_seconds, sorting_seconds, merging_seconds],
    })
}

impl Feed for Sources {
    fn next_block(&self, worker: usize, block: &mut Block) -> Result<bool> {
        Sources::next_block(self, worker, block)
    }

    fn position(&self) -> Option<String> {
        let position = Sources::position(self)?;
        Some(serde_json::to_string(&position).expect("a position is plain data"))
    }

    fn resume(&self, position: &str) -> Result<()> {
        let position = serde_json::from_str(position).map_err(|error| {
            Error::Invalid(format!("cannot read the notes of the interrupted run ({error}): remove them"))
        })?;
        Sources::resume(self, position)
    }

    fn counters(&self) -> Counters {
        Sources::counters(self)
    }
}
