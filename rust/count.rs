//! Text -> (piece, count), in bounded memory.
//!
//! Each thread reads blocks, splits them into pieces and counts these in a table of its own. A full table is written to
//! disk as a sorted run, then emptied. From time to time all threads pause, all tables are written as runs, and the
//! position in the sources is saved with them: an interrupted count resumes from there. Neither the threads nor the
//! runs nor the pauses change a count.

use crate::crew::{Progress, Stage, Watch, crew};
use crate::error::{Error, Result};
use crate::merge::store::{ChunkBuilder, PieceStore};
use crate::rss;
use crate::source::{Block, Counters};
use crate::specials::{Part, Specials};
use crate::spill::{self, PARTITIONS, Run, RunWriter};
use crate::split::{Pattern, Sink};
use crate::table::{CountTable, Key, hash};
use crate::workdir::{Notes, WorkDir};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A longer piece is cut: no word is that long, and a binary blob must not become a piece.
pub const MAX_PIECE: usize = 4096;
const LONGEST_CHARACTER: usize = 4;

/// Where text comes from.
pub trait Feed: Sync {
    fn next_block(&self, worker: usize, block: &mut Block) -> Result<bool>;
    /// The position to resume from, as JSON; `None` if that is not possible.
    fn position(&self) -> Option<String>;
    fn resume(&self, position: &str) -> Result<()>;
    /// What has been read so far.
    fn counters(&self) -> Counters;
}

pub struct Settings<'a> {
    pub pattern: &'a Pattern,
    pub specials: &'a Specials,
    pub threads: usize,
    /// Bytes for the tables of all threads.
    pub memory: usize,
    /// Resident bytes of the whole process at which a table is spilled early.
    pub resident_limit: u64,
    pub checkpoint_every: Duration,
}

/// Totals over all pieces.
#[derive(Default, Debug, Clone, serde::Serialize, serde::Deserialize, PartialEq)]
pub struct Totals {
    pub pieces: u64,
    pub cut_pieces: u64,
    pub runs: u64,
}

struct Worker {
    table: CountTable,
    pending: Vec<Key>,
    totals: Totals,
    error: Option<Error>,
}

/// Pieces looked up at once: their slots are prefetched together, so that their cache misses overlap.
const PENDING: usize = 32;

impl Worker {
    fn new(memory: usize) -> Self {
        Worker {
            table: CountTable::new(memory),
            pending: Vec::with_capacity(PENDING),
            totals: Totals::default(),
            error: None,
        }
    }

    fn count(&mut self, text: &str, pattern: &Pattern, folder: &WorkDir) {
        let counter = Counter { worker: self, bytes: text.as_bytes(), folder };
        pattern.split(text, MAX_PIECE, counter);
        self.add_pending(folder);
    }

    #[inline]
    fn add_pending(&mut self, folder: &WorkDir) {
        for n in 0..self.pending.len() {
            let key = self.pending[n];
            if self.table.add_short(&key, 1).is_err() {
                self.add(folder, |table| table.add_short(&key, 1));
            }
        }
        self.pending.clear();
    }

    /// Adds, spilling first if the table is full. An error is kept until the end of the block.
    #[cold]
    fn add(&mut self, folder: &WorkDir, add: impl Fn(&mut CountTable) -> Result<(), crate::table::Full>) {
        if add(&mut self.table).is_err() {
            self.spill(folder);
            add(&mut self.table).expect("an empty table can take one piece");
        }
    }

    fn spill(&mut self, folder: &WorkDir) {
        if self.table.is_empty() || self.error.is_some() {
            self.table.clear();
            return;
        }
        match spill::spill(&mut self.table, &folder.new_run()) {
            Ok(run) => {
                folder.add_run(run);
                self.totals.runs += 1;
            }
            Err(error) => {
                self.table.clear();
                self.error = Some(error);
            }
        }
    }

    /// Called if the measured memory comes close to the budget although the shares should prevent it: spills the table
    /// and continues with a smaller one.
    fn spill_and_shrink(&mut self, folder: &WorkDir) {
        let less = (self.table.bytes() / 2).max(CountTable::smallest());
        self.spill(folder);
        self.table = CountTable::new(less);
    }
}

/// Counts the pieces of one text.
struct Counter<'a> {
    worker: &'a mut Worker,
    bytes: &'a [u8],
    folder: &'a WorkDir,
}

impl Sink for Counter<'_> {
    #[inline(always)]
    fn piece(&mut self, start: usize, end: usize) {
        let worker = &mut *self.worker;
        worker.totals.pieces += 1;
        match Key::short(self.bytes, start, end) {
            Some(key) => {
                worker.table.prefetch(key.hash);
                worker.pending.push(key);
                if worker.pending.len() == PENDING {
                    worker.add_pending(self.folder);
                }
            }
            None => {
                // By its length, because a block that ends at a cut does not say so.
                worker.totals.cut_pieces += u64::from(end - start > MAX_PIECE - LONGEST_CHARACTER);
                worker.add(self.folder, |table| table.add(&self.bytes[start..end], 1));
            }
        }
    }
}

/// Counts everything that `feed` gives, resuming from the folder's notes if it has any.
pub fn count(
    feed: &dyn Feed,
    settings: &Settings<'_>,
    folder: &WorkDir,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Counted> {
    let share = settings.memory / settings.threads;
    let mut counting = Counting {
        feed,
        settings,
        folder,
        progress,
        workers: (0..settings.threads).map(|_| Mutex::new(Worker::new(share))).collect(),
        before: Totals::default(),
    };
    let mut done = false;
    if let Some(notes) = folder.notes() {
        counting.before = notes.totals.clone();
        done = notes.done;
        if let Some(position) = &notes.position {
            feed.resume(position)?; // even if nothing is left to read, for the counters
        }
    }
    progress.stage.store(Stage::Counting as u64, Relaxed);
    while !done {
        match counting.round(watch) {
            Ok(finished) => done = finished,
            Err(Error::Cancelled) => {
                // Every block that was read has been counted, so this can be resumed from.
                counting.save(false)?;
                return Err(Error::Cancelled);
            }
            Err(error) => return Err(error),
        }
        if !done || folder.has_runs() || counting.table_bytes() > settings.memory / 8 * 5 {
            counting.save(done)?;
        }
    }
    let totals = counting.totals();
    let tables = counting.workers.into_iter().map(|worker| worker.into_inner().unwrap().table).collect();
    Ok(Counted { totals, tables })
}

struct Counting<'a> {
    feed: &'a dyn Feed,
    settings: &'a Settings<'a>,
    folder: &'a WorkDir,
    progress: &'a Progress,
    workers: Vec<Mutex<Worker>>,
    /// Totals of the interrupted run that this one resumes.
    before: Totals,
}

impl Counting<'_> {
    /// Counts until there is no more text (true) or it is time for a checkpoint (false).
    fn round(&self, watch: &mut Watch<'_>) -> Result<bool> {
        let Counting { feed, settings, folder, progress, .. } = self;
        let pause = AtomicBool::new(false);
        let finished = AtomicUsize::new(0);
        let started = Instant::now();
        let mut watch_clock = |progress: &Progress| {
            progress.done.store(feed.counters().bytes_on_disk, Relaxed);
            pause.fetch_or(started.elapsed() >= settings.checkpoint_every, Relaxed);
            watch(progress)
        };
        crew(settings.threads, progress, &mut watch_clock, |n| {
            let mut worker = self.workers[n].lock().unwrap();
            let pattern = settings.pattern.clone();
            let mut block = Block::new();
            while !pause.load(Relaxed) {
                progress.check()?;
                if !feed.next_block(n, &mut block)? {
                    finished.fetch_add(1, Relaxed);
                    break;
                }
                for (_, text) in block.iter() {
                    for part in settings.specials.parts(text) {
                        if let Part::Text(part) = part {
                            worker.count(part, &pattern, folder);
                        }
                    }
                }
                if rss::resident() > settings.resident_limit && worker.table.len() > 1000 {
                    worker.spill_and_shrink(folder);
                }
                if let Some(error) = worker.error.take() {
                    return Err(error);
                }
            }
            Ok(())
        })?;
        Ok(finished.into_inner() == settings.threads)
    }

    /// Writes all tables as runs and saves the position in the sources.
    fn save(&self, done: bool) -> Result<()> {
        std::thread::scope(|scope| {
            for worker in &self.workers {
                scope.spawn(|| worker.lock().unwrap().spill(self.folder));
            }
        });
        for worker in &self.workers {
            if let Some(error) = worker.lock().unwrap().error.take() {
                return Err(error);
            }
        }
        match self.feed.position() {
            Some(position) => {
                self.folder.write_notes(&Notes::new(self.folder, Some(position), self.totals(), done))
            }
            None => Ok(()),
        }
    }

    fn table_bytes(&self) -> usize {
        self.workers.iter().map(|worker| worker.lock().unwrap().table.bytes()).sum()
    }

    fn totals(&self) -> Totals {
        self.workers.iter().fold(self.before.clone(), |mut sum, worker| {
            let worker = worker.lock().unwrap();
            sum.pieces += worker.totals.pieces;
            sum.cut_pieces += worker.totals.cut_pieces;
            sum.runs += worker.totals.runs;
            sum
        })
    }
}

pub struct Counted {
    pub totals: Totals,
    tables: Vec<CountTable>,
}

impl Counted {
    /// Of a count whose pieces are all in the runs of a folder.
    pub fn of_runs() -> Counted {
        Counted { totals: Totals::default(), tables: Vec::new() }
    }

    /// Merges the counts of all threads and runs into one run.
    pub fn into_run(self, folder: &WorkDir, path: &Path, memory: usize) -> Result<Run> {
        let runs = folder.take_runs();
        let mut writer = RunWriter::create(path)?;
        if runs.is_empty() {
            for partition in 0..PARTITIONS {
                merge_tables(&self.tables, partition, &mut |piece, count| {
                    writer.push(piece, hash(piece), count)
                })?;
            }
        } else {
            drop(self.tables); // all of them are in the runs
            let runs = spill::reduce(runs, (memory / MERGE_BUFFER).max(4), memory, || folder.new_run())?;
            for partition in 0..PARTITIONS {
                spill::merge_partition(&runs, partition, memory, |piece, hash, count| {
                    writer.push(piece, hash, count)
                })?;
            }
        }
        writer.finish()
    }

    /// Merges the counts of all threads and runs, a partition at a time on all threads, into the store of pieces.
    pub fn into_store(
        self,
        folder: &WorkDir,
        threads: usize,
        memory: usize,
        store_share: usize,
        progress: &Progress,
        watch: &mut Watch<'_>,
    ) -> Result<(PieceStore, u64)> {
        let mut store = PieceStore::new(folder.path(), store_share)?;
        progress.enter(Stage::Sorting, PARTITIONS as u64);
        let distinct = AtomicU64::new(0);
        let next = AtomicUsize::new(0);
        let runs = folder.take_runs();
        let (tables, runs) = if runs.is_empty() {
            (self.tables, Vec::new())
        } else {
            drop(self.tables); // all of them are in the runs
            let most = (memory / threads / MERGE_BUFFER).max(4);
            (Vec::new(), spill::reduce(runs, most, memory, || folder.new_run())?)
        };
        let shared = Mutex::new(&mut store);
        let builders = crew(threads, progress, watch, |_| {
            let mut builder = ChunkBuilder::default();
            loop {
                let partition = next.fetch_add(1, Relaxed);
                if partition >= PARTITIONS {
                    return Ok(builder);
                }
                progress.check()?;
                let mut add = |piece: &[u8], count: u64| {
                    distinct.fetch_add(1, Relaxed);
                    builder.add(piece, count);
                    if builder.is_full() { shared.lock().unwrap().push(&mut builder) } else { Ok(()) }
                };
                if runs.is_empty() {
                    merge_tables(&tables, partition, &mut add)?;
                } else {
                    spill::merge_partition(&runs, partition, memory / threads, |piece, _, count| {
                        add(piece, count)
                    })?;
                }
                progress.done.fetch_add(1, Relaxed);
            }
        })?;
        for mut builder in builders {
            store.push(&mut builder)?;
        }
        Ok((store, distinct.into_inner()))
    }
}

const MERGE_BUFFER: usize = 64 << 10;

fn merge_tables(
    tables: &[CountTable],
    partition: usize,
    add: &mut impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut bytes = Vec::new();
    let mut entries: Vec<(u64, std::ops::Range<usize>, u64)> = Vec::new();
    for table in tables {
        table.for_each_in(partition as u64, PARTITIONS.ilog2(), |key, hash, count| {
            let start = bytes.len();
            bytes.extend_from_slice(key);
            entries.push((hash, start..bytes.len(), count));
        });
    }
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| bytes[a.1.clone()].cmp(&bytes[b.1.clone()])));
    for same in entries.chunk_by(|a, b| a.0 == b.0 && bytes[a.1.clone()] == bytes[b.1.clone()]) {
        add(&bytes[same[0].1.clone()], same.iter().map(|entry| entry.2).sum())?;
    }
    Ok(())
}

/// Opens the folder of an interrupted run, or an empty one.
pub fn open_folder(path: &Path, signature: &str) -> Result<WorkDir> {
    let folder = WorkDir::open(path, signature)?;
    if let Some(notes) = folder.notes() {
        for name in &notes.runs {
            folder.add_run(Run::find_checked(&folder.path().join(name))?);
        }
    }
    Ok(folder)
}
