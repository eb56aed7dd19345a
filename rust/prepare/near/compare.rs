//! Compares the pairs of one task on their shingles, and decides which documents are dropped.
//!
//! A document is dropped if it is similar to an earlier one that is kept; the first such is noted. Tasks are compared
//! independently, in any order and anywhere, as if every document were kept: the result is the first similar one. Then
//! one pass over these results, in the order of the input, decides. Where the first similar document is dropped itself,
//! the later candidates are compared then. There are few of these, because the earliest document of a group is kept.

use super::bits::DroppedBits;
use super::dropped::Drop;
use super::sets::Sets;
use super::similar::Similar;
use super::texts::{Decoding, Texts};
use crate::crew::{Progress, crew};
use crate::error::Result;
use crate::near::ordinal::{Ordinal, Which};
use crate::near::pairs::TaskPairs;
use crate::near::{Buffer, in_order, similarity};
use crate::prepare::Job;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct Comparing<'a> {
    pub job: &'a Job,
    pub threshold: f64,
    pub decoding: &'a Decoding<'a>,
    pub sets: Sets,
    /// The pairs of all partitions.
    pub pairs: Vec<PathBuf>,
    /// For the pairs of one task.
    pub memory: usize,
}

/// Bytes per pair of a window: a document with one pair, and what was found.
const PAIR: usize = size_of::<Ordinal>() + size_of::<Later>() + 2 * size_of::<Similar>();
/// Documents that a thread takes at a time.
const TAKEN: usize = 16;

/// A document and those before it that it may be similar to.
struct Later {
    index: u32,
    /// Its place in the window's list.
    earlier: std::ops::Range<usize>,
}

impl Comparing<'_> {
    /// Calls `each` with the documents of a task that are similar to an earlier one, in order, a window at a time.
    pub fn task(
        &self,
        task: u32,
        threads: usize,
        progress: &Progress,
        each: &mut dyn FnMut(&[Similar]) -> Result<()>,
    ) -> Result<()> {
        let mut pairs = TaskPairs { files: &self.pairs, task, progress };
        let count = pairs.count()?;
        let most = (self.memory / 2 / PAIR).max(1);
        let mut buffer = Buffer::new(self.memory / 2);
        let mut window = Window { laters: Vec::new(), earlier: Vec::new() };
        in_order(&mut pairs, (0, u64::from(u32::MAX)), count, &mut buffer, &mut |later, earlier| {
            let (index, earlier) = (later as u32, Ordinal::from_number(earlier));
            if window.starts(index) && window.earlier.len() >= most {
                each(&self.window(task, &window, threads, progress)?)?;
                window.laters.clear();
                window.earlier.clear();
            }
            window.add(index, earlier);
            Ok(())
        })?;
        each(&self.window(task, &window, threads, progress)?)
    }

    fn window(
        &self,
        task: u32,
        window: &Window,
        threads: usize,
        progress: &Progress,
    ) -> Result<Vec<Similar>> {
        let next = AtomicUsize::new(0);
        let threads = threads.min(window.laters.len().div_ceil(TAKEN)).max(1);
        let work = |_| {
            let mut texts = Texts::new(self.job, self.decoding);
            let mut found = Vec::new();
            loop {
                let start = next.fetch_add(TAKEN, Relaxed);
                let end = window.laters.len().min(start + TAKEN);
                let Some(some) = window.laters.get(start..end).filter(|some| !some.is_empty()) else {
                    return Ok(found);
                };
                progress.check()?;
                for later in some {
                    let earlier = &window.earlier[later.earlier.clone()];
                    if let Some((at, similarity)) =
                        self.first_similar(task, later.index, earlier, &mut texts)?
                    {
                        let others = earlier[at + 1..].to_vec();
                        found.push(Similar { index: later.index, first: earlier[at], similarity, others });
                    }
                }
            }
        };
        if threads == 1 {
            return work(0);
        }
        let parts = crew(threads, progress, &mut |_| Ok(()), work)?;
        let mut all: Vec<Similar> = parts.into_iter().flatten().collect();
        all.sort_unstable_by_key(|similar| similar.index);
        Ok(all)
    }

    /// Where the first similar one of the earlier documents is, and how similar it is.
    fn first_similar(
        &self,
        task: u32,
        index: u32,
        earlier: &[Ordinal],
        texts: &mut Texts<'_>,
    ) -> Result<Option<(usize, f64)>> {
        let mut own = None;
        for (at, &before) in earlier.iter().enumerate() {
            let own = match &own {
                Some(set) => set,
                None => own.insert(texts.set(task, index)?),
            };
            let similarity = similarity(own, &self.sets.get(before, texts)?, self.threshold);
            if similarity >= self.threshold {
                return Ok(Some((at, similarity)));
            }
        }
        Ok(None)
    }

    /// Whether a document is dropped, given which of those before it are.
    pub fn decide(
        &self,
        task: u32,
        found: &Similar,
        bits: &DroppedBits,
        texts: &mut Texts<'_>,
    ) -> Result<Option<Drop>> {
        let (mut kept, mut similarity, mut others) = (found.first, found.similarity, &found.others[..]);
        while is_dropped(bits, kept) {
            let left: Vec<Ordinal> =
                others.iter().copied().filter(|&other| !is_dropped(bits, other)).collect();
            let Some((at, next)) = self.first_similar(task, found.index, &left, texts)? else {
                return Ok(None);
            };
            (kept, similarity, others) = (left[at], next, &[]);
        }
        Ok(Some(Drop { index: found.index, kept, similarity }))
    }
}

fn is_dropped(bits: &DroppedBits, ordinal: Ordinal) -> bool {
    match ordinal.which() {
        Which::Own { task, index } => bits.has(task, index),
        Which::Cached { .. } => false,
    }
}

/// Documents that are decided together, in order.
struct Window {
    laters: Vec<Later>,
    earlier: Vec<Ordinal>,
}

impl Window {
    fn starts(&self, index: u32) -> bool {
        self.laters.last().is_none_or(|last| last.index != index)
    }

    /// The pairs come in order, some of them several times.
    fn add(&mut self, index: u32, earlier: Ordinal) {
        let at = self.earlier.len();
        if self.starts(index) {
            self.laters.push(Later { index, earlier: at..at });
        }
        let last = self.laters.last_mut().expect("pushed above");
        if self.earlier[last.earlier.clone()].last() != Some(&earlier) {
            self.earlier.push(earlier);
            last.earlier.end += 1;
        }
    }
}
