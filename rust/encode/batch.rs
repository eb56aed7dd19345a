//! Encodes many documents at once on all threads, into one array of ids with the documents' ends.

use super::{Encoder, Id};
use crate::crew::{Progress, Watch, crew};
use crate::error::Result;
use crate::specials::Specials;
use crate::split::floor;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that one thread encodes at a time. A longer document is divided, shorter ones are grouped.
const TASK: usize = 256 << 10;

/// Buffers kept for the next batch, of about half a megabyte each.
const SPARE_BUFFERS: usize = 8;

#[derive(Default)]
pub struct Batch<I> {
    pub ids: Vec<I>,
    /// Where each document ends in `ids`.
    pub ends: Vec<u64>,
}

/// Part of one document, or several whole ones.
struct Task {
    documents: std::ops::Range<usize>,
    /// The range within the document, if it is one document that was divided.
    part: Option<(usize, usize)>,
}

/// The ids of all documents. Pieces longer than `cap` are cut, so that the documents may themselves be parts, cut where
/// `Encoder::stable_prefix` says with the same cap.
pub fn encode_batch<I: Id>(
    encoder: &Encoder,
    documents: &[&str],
    specials: &Specials,
    special_ids: &[u32],
    cap: usize,
    threads: usize,
    watch: &mut Watch<'_>,
) -> Result<Batch<I>> {
    let tasks = divide(encoder, documents, specials, cap);
    let threads = threads.min(tasks.len()).max(1);
    let bytes: usize = documents.iter().map(|document| document.len()).sum();
    let joined = Mutex::new(Joined {
        all: Batch {
            ids: Vec::with_capacity(encoder.expected(bytes)),
            ends: Vec::with_capacity(documents.len()),
        },
        waiting: tasks.iter().map(|_| None).collect(),
        next: 0,
    });
    let next = AtomicUsize::new(0);
    let progress = Progress::default();
    let work = |_| {
        let mut worker = encoder.worker(cap);
        loop {
            let n = next.fetch_add(1, Relaxed);
            let Some(task) = tasks.get(n) else { break };
            progress.check()?;
            let ids = I::spare(encoder).lock().unwrap().pop().unwrap_or_default();
            let mut batch = Batch { ids, ends: Vec::new() };
            for document in task.documents.clone() {
                let text = documents[document];
                let text = task.part.map_or(text, |(start, end)| &text[start..end]);
                encoder.encode_into(&mut worker, text, specials, special_ids, &mut batch.ids)?;
                batch.ends.push(batch.ids.len() as u64);
            }
            joined.lock().unwrap().add(encoder, &tasks, n, batch);
        }
        encoder.return_worker(worker);
        Ok(())
    };
    if threads == 1 && bytes <= TASK {
        work(0)?;
    } else {
        crew(threads, &progress, watch, work)?;
    }
    let mut all = joined.into_inner().unwrap().all;
    encoder.learn_density(all.ids.len(), bytes);
    if all.ids.len() < all.ids.capacity() / 4 * 3 {
        all.ids.shrink_to_fit();
    }
    Ok(all)
}

fn divide(encoder: &Encoder, documents: &[&str], specials: &Specials, cap: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    let mut gathered = (0, 0);
    let close = |tasks: &mut Vec<Task>, gathered: &mut (usize, usize), end: usize| {
        if gathered.0 < end {
            tasks.push(Task { documents: gathered.0..end, part: None });
        }
        *gathered = (end, 0);
    };
    for (n, text) in documents.iter().enumerate() {
        if text.len() <= 2 * TASK {
            gathered.1 += text.len();
            if gathered.1 >= TASK {
                close(&mut tasks, &mut gathered, n + 1);
            }
            continue;
        }
        close(&mut tasks, &mut gathered, n);
        let mut start = 0;
        while start < text.len() {
            let mut window = TASK;
            let cut = loop {
                let end = floor(text, start + window);
                if end == text.len() {
                    break end - start;
                }
                match encoder.stable_prefix(&text[start..end], specials, cap) {
                    0 => window *= 2, // one long run of text without a place to cut
                    cut => break cut,
                }
            };
            tasks.push(Task { documents: n..n + 1, part: Some((start, start + cut)) });
            start += cut;
        }
        gathered = (n + 1, 0);
    }
    close(&mut tasks, &mut gathered, documents.len());
    tasks
}

/// Joins the parts in order, each as soon as those before it are done: one thread copies what is still in its cache
/// while the others encode.
struct Joined<I> {
    all: Batch<I>,
    waiting: Vec<Option<Batch<I>>>,
    next: usize,
}

impl<I: Id> Joined<I> {
    fn add(&mut self, encoder: &Encoder, tasks: &[Task], n: usize, batch: Batch<I>) {
        self.waiting[n] = Some(batch);
        while let Some(mut part) = self.waiting.get_mut(self.next).and_then(Option::take) {
            let base = self.all.ids.len() as u64;
            self.all.ids.extend_from_slice(&part.ids);
            if self.all.ends.len() > tasks[self.next].documents.start {
                self.all.ends.pop(); // a later part of the same document
            }
            self.all.ends.extend(part.ends.iter().map(|end| base + end));
            self.next += 1;
            let mut spare = I::spare(encoder).lock().unwrap();
            if spare.len() < SPARE_BUFFERS && part.ids.capacity() <= 4 * TASK {
                part.ids.clear();
                spare.push(part.ids);
            }
        }
    }
}
