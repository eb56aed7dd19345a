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

/// How a share is divided. Counting and merging follow each other, so each has nearly all of it.
pub struct Shares {
    pub block_bytes: usize,
    pub window_bytes: u64,
    tables: usize,
    store: usize,
    phase: usize,
}

const LEAST_TABLE: usize = 1 << 20;
const LEAST_MERGING: usize = 6 << 20;
const LEAST_BLOCK: usize = 64 << 10;

impl Shares {
    /// The least memory that works, for the refusal.
    pub fn least(threads: usize, tokens: usize) -> usize {
        // Counting: a table and its blocks for each thread. Merging: segments, and per token what the
        // vocabulary and the neighbours' sums take.
        let counting = threads * (LEAST_TABLE + READING * LEAST_BLOCK);
        counting.max(LEAST_MERGING) + tokens * TOKEN_BYTES
    }

    pub fn new(memory: usize, threads: usize, tokens: usize) -> Result<Self> {
        let least = Self::least(threads, tokens);
        if memory < least {
            return Err(Error::Budget {
                need: least as u64,
                have: memory as u64,
                what: format!("tables and read buffers of {threads} threads and {tokens} tokens"),
            });
        }
        let block_bytes = (memory / threads / 64).clamp(LEAST_BLOCK, 1 << 20);
        let merging = memory - tokens * TOKEN_BYTES;
        Ok(Shares {
            block_bytes,
            window_bytes: (memory / threads / 8).clamp(8 << 20, 128 << 20) as u64,
            tables: memory - threads * READING * block_bytes - memory / 16,
            store: merging / 4,
            // More would only make phases wider than is quick (see `merge::REACH`).
            phase: (merging / 2).min(512 << 20),
        })
    }
}

/// Blocks that a thread may hold while reading: its own, its lane's, and what a long run of text without a
/// place to cut adds.
const READING: usize = 6;
/// A token's bytes with their index, the sums of its neighbours, its width.
const TOKEN_BYTES: usize = 160;

pub fn train(
    feed: &dyn Feed,
    settings: &Settings,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Trained> {
    rss::return_large_blocks();
    let shares = Shares::new(settings.memory, settings.threads, settings.tokens)?;
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
