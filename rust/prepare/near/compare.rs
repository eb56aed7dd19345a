//! Compares the pairs of one task on their shingles, and decides which of its documents are dropped.
//!
//! A document is dropped if it is similar to an earlier one that is kept; the first such is noted. Tasks are done in
//! order, and within a task documents in windows: what was before a window is decided, so that all threads compare with
//! it. They also compare documents within the window, as if the earlier one were kept; then the window is decided in
//! order, and what turns out to be needed in addition is compared. The result does not depend on the windows.

use super::bits::DroppedBits;
use super::dropped::Drop;
use super::sets::Sets;
use super::texts::{Decoding, Texts};
use crate::crew::{Progress, Watch, crew};
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
    /// For pairs.
    pub memory: usize,
    pub threads: usize,
}

/// Bytes per pair of a window: a document with one pair, and what was found.
const PAIR: usize = size_of::<Ordinal>() + size_of::<Later>() + 3 * size_of::<Found>();
/// Documents that a thread takes at a time.
const TAKEN: usize = 16;

/// A document and those before it that it may be similar to.
struct Later {
    index: u32,
    /// Its place in the window's list.
    earlier: std::ops::Range<usize>,
}

#[derive(Clone, Copy, Default)]
struct Found {
    hit: Option<(Ordinal, f64)>,
    /// How many of the earlier documents were looked at.
    seen: usize,
}

impl Comparing<'_> {
    /// Calls `each` with the dropped documents of a task, in order, a window at a time, and sets their bits.
    pub fn task(
        &self,
        task: u32,
        bits: &mut DroppedBits,
        progress: &Progress,
        watch: &mut Watch<'_>,
        each: &mut dyn FnMut(&[Drop]) -> Result<()>,
    ) -> Result<()> {
        let mut pairs = TaskPairs { files: &self.pairs, task, progress };
        let count = pairs.count()?;
        let most = (self.memory / 2 / PAIR).max(1);
        let mut buffer = Buffer::new(self.memory / 2);
        let mut window = Window { laters: Vec::new(), earlier: Vec::new() };
        in_order(&mut pairs, (0, u64::from(u32::MAX)), count, &mut buffer, &mut |later, earlier| {
            let (index, earlier) = (later as u32, Ordinal::from_number(earlier));
            if window.starts(index) && window.earlier.len() >= most {
                each(&self.window(task, &mut window, bits, progress, watch)?)?;
            }
            window.add(index, earlier);
            Ok(())
        })?;
        each(&self.window(task, &mut window, bits, progress, watch)?)
    }

    fn window(
        &self,
        task: u32,
        window: &mut Window,
        bits: &mut DroppedBits,
        progress: &Progress,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Drop>> {
        if window.laters.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.compare_all(task, window, bits, progress, watch)?;
        let mut texts = Texts::new(self.job, self.decoding);
        let mut drops = Vec::new();
        for (later, mut found) in window.laters.iter().zip(found) {
            while let Some((kept, similarity)) = found.hit {
                if !is_dropped(bits, kept) {
                    bits.set(task, later.index);
                    drops.push(Drop { index: later.index, kept, similarity });
                    break;
                }
                // The one that it was compared with has been dropped meanwhile.
                progress.check()?;
                let earlier = &window.earlier[later.earlier.clone()][found.seen..];
                let more = self.compare(task, later.index, earlier, bits, &mut texts)?;
                found = Found { hit: more.hit, seen: found.seen + more.seen };
            }
        }
        window.laters.clear();
        window.earlier.clear();
        Ok(drops)
    }

    /// Compares every document of the window with the earlier ones, as far as these are known to be kept.
    fn compare_all(
        &self,
        task: u32,
        window: &Window,
        bits: &DroppedBits,
        progress: &Progress,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Found>> {
        let next = AtomicUsize::new(0);
        let threads = self.threads.min(window.laters.len().div_ceil(TAKEN)).max(1);
        let parts = crew(threads, progress, watch, |_| {
            let mut texts = Texts::new(self.job, self.decoding);
            let mut found = Vec::new();
            loop {
                let start = next.fetch_add(TAKEN, Relaxed);
                let Some(some) = window.laters.get(start..window.laters.len().min(start + TAKEN)) else {
                    return Ok(found);
                };
                if some.is_empty() {
                    return Ok(found);
                }
                progress.check()?;
                for (at, later) in (start..).zip(some) {
                    let earlier = &window.earlier[later.earlier.clone()];
                    found.push((at, self.compare(task, later.index, earlier, bits, &mut texts)?));
                }
            }
        })?;
        let mut all = vec![Found::default(); window.laters.len()];
        for (at, found) in parts.into_iter().flatten() {
            all[at] = found;
        }
        Ok(all)
    }

    /// The first of the earlier documents that is not dropped, as far as is known, and similar.
    fn compare(
        &self,
        task: u32,
        index: u32,
        earlier: &[Ordinal],
        bits: &DroppedBits,
        texts: &mut Texts<'_>,
    ) -> Result<Found> {
        let mut own = None;
        for (at, &before) in earlier.iter().enumerate() {
            if is_dropped(bits, before) {
                continue;
            }
            let own = match &own {
                Some(set) => set,
                None => own.insert(texts.set(task, index)?),
            };
            let similarity = similarity(own, &self.sets.get(before, texts)?, self.threshold);
            if similarity >= self.threshold {
                return Ok(Found { hit: Some((before, similarity)), seen: at + 1 });
            }
        }
        Ok(Found { hit: None, seen: earlier.len() })
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
