//! The spine of BPE training: count, gather, merge; and how the memory is divided among them.

use crate::count::{self, Feed, Totals};
use crate::crew::{Progress, Watch};
use crate::error::{Error, Result};
use crate::merge::vocabulary::{TieBreak, Vocabulary};
use crate::merge::{self, PhaseNote};
use crate::rss;
use crate::source::{Block, Counters, Sources};
use crate::specials::Specials;
use crate::split::Pattern;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Settings {
    pub pattern: Pattern,
    pub specials: Arc<Specials>,
    /// Tokens that merges may fill up to, the 256 bytes included and the specials not.
    pub tokens: usize,
    pub min_frequency: u64,
    pub max_token_bytes: usize,
    pub tie_break: TieBreak,
    pub threads: usize,
    /// Bytes that this work may add to the process.
    pub memory: usize,
    /// Of these, what a decoder of the inputs takes at least; 0 where none of them is packed.
    pub decoding: usize,
    /// Resident bytes that the whole process must stay under.
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

/// How a share is divided. Counting, merging and handing out the result follow each other, so each has nearly all of it.
#[derive(Debug)]
pub struct Shares {
    pub block_bytes: usize,
    pub window_bytes: u64,
    tables: usize,
    store: usize,
    phase: usize,
}

const LEAST_TABLE: usize = 1 << 20;
const LEAST_MERGING: usize = 9 << 20;
const LEAST_BLOCK: usize = 64 << 10;
/// What any decoder may have for its window, however little memory there is.
pub const LEAST_WINDOW: usize = 8 << 20;
/// Blocks that a thread may hold while reading: its own, its lane's, and what a long run of text without a
/// place to cut adds.
const READING: usize = 6;
/// What no share is: pages of the core's code and tables, which become resident as they are used.
const CODE: usize = 4 << 20;
/// What a thread has besides its table and blocks: its stack, the allocator's arena and what is freed in it, the
/// buffer of a run that is written, the chunks that a pass reads and writes, the segments of the last one.
const THREAD: usize = 3 << 19;
/// A token while merging: its bytes twice with their index as that grows, its merge, the sums of its neighbours, its
/// width.
const TOKEN_BYTES: usize = 240;
/// A token when all is learned: as above, and as Python has it, with its merge, its spelling and its place in a set.
const RESULT_BYTES: usize = 600;

impl Shares {
    /// The least memory that works, for the refusal. `decoding` is what a decoder of the inputs takes at least; 0 where
    /// none of them is packed.
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
                what: format!("tables and read buffers of {threads} threads and {tokens} tokens"),
            });
        }
        let memory = memory - fixed(threads);
        let block_bytes = (memory / threads / 64).clamp(LEAST_BLOCK, 1 << 20);
        let merging = memory - tokens * TOKEN_BYTES;
        let window_bytes = (memory / threads / 8).clamp(LEAST_WINDOW, 128 << 20);
        let decoding = if decoding > 0 { decoding + window_bytes - LEAST_WINDOW } else { 0 };
        let reading = threads * (READING * block_bytes + decoding);
        Ok(Shares {
            block_bytes,
            window_bytes: window_bytes as u64,
            tables: (memory - reading).saturating_sub(memory / 16).max(threads * LEAST_TABLE),
            store: merging / 4,
            // More would only make phases wider than is quick (see `merge::REACH`).
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
        // The shares leave 1/32 free; past half of that something is not as it was reckoned.
        resident_limit: settings.resident_limit / 64 * 63,
        checkpoint_every: settings.checkpoint_every,
    };
    let started = Instant::now();
    let counted = count::count(feed, &counting, &folder, progress, watch)?;
    let counting_seconds = started.elapsed().as_secs_f64();
    let totals = counted.totals.clone();
    let (mut store, distinct) =
        counted.into_store(&folder, settings.threads, shares.phase, shares.store, progress, watch)?;
    rss::trim();
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
    rss::trim(); // the result is next, and needs its room
    let merging_seconds = started.elapsed().as_secs_f64() - counting_seconds - sorting_seconds;
    Ok(Trained {
        vocabulary,
        read: feed.counters(),
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
            Error::Invalid(format!("the notes of the interrupted run cannot be read ({error}): remove them"))
        })?;
        Sources::resume(self, position)
    }

    fn counters(&self) -> Counters {
        Sources::counters(self)
    }
}
