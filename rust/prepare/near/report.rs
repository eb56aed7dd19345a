//! `near_duplicates.jsonl`: some of the pairs, and the documents with the most copies.
//!
//! The pairs are those whose dropped documents have the least hashes; each with a part of both texts, from a little
//! before the first difference on.

use super::corrected::{SHOWN_PAIRS, Shown, source};
use super::texts::{Decoding, Texts};
use super::{NEAR, caches, dropped};
use crate::atomic::NewFile;
use crate::crew::Progress;
use crate::error::Result;
use crate::near::cache::CacheFile;
use crate::near::ordinal::{Ordinal, Which};
use crate::near::{Buffer, Source, in_order};
use crate::own_files;
use crate::prepare::Job;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// Documents with many copies that are listed.
const CLUSTERS: usize = 20;
/// Characters of a text that are shown, of these at most so many before the first difference.
const CHARACTERS: usize = 400;
const BEFORE: usize = 120;
/// For counting the copies of each document.
const MEMORY: usize = 4 << 20;

#[derive(Deserialize)]
struct Note {
    near: Vec<Shown>,
}

pub fn write_report(job: &Job, path: &Path, decoding: &Decoding<'_>, progress: &Progress) -> Result<()> {
    let (caches, mut texts) = (caches(job)?, Texts::new(job, decoding));
    let mut file = NewFile::create(path)?;
    let mut line = |value: Value| file.write(format!("{value}\n").as_bytes());
    for (task, pair) in pairs(job)? {
        progress.check()?;
        let (dropped, kept) = (Ordinal::own(task, pair.index), Ordinal::from_number(pair.kept));
        let start = start_of_difference(dropped, kept, &mut texts)?;
        let one = shown_text(dropped, start, &mut texts)?;
        let other = shown_text(kept, start, &mut texts)?;
        line(json!({
            "dropped": origin(job, dropped, one, &caches, &mut texts)?,
            "kept": origin(job, kept, other, &caches, &mut texts)?,
            "similarity": (pair.similarity * 1e6).round() / 1e6,
        }))?;
    }
    for (count, kept) in clusters(job, progress)? {
        let text = shown_text(kept, 0, &mut texts)?;
        line(json!({"cluster": origin(job, kept, text, &caches, &mut texts)?, "documents": count}))?;
    }
    file.commit()
}

/// The pairs with the least hashes of all tasks.
fn pairs(job: &Job) -> Result<Vec<(u32, Shown)>> {
    let mut pairs: Vec<(u32, Shown)> = Vec::new();
    for task in 0..job.plan.tasks {
        let note: Note = own_files::read_json(&job.note(NEAR, task))?;
        pairs.extend(note.near.into_iter().map(|pair| (task, pair)));
        pairs.sort_by_key(|(task, pair)| (pair.hash, *task, pair.index));
        pairs.truncate(SHOWN_PAIRS);
    }
    Ok(pairs)
}

/// A part of a text. Of documents of earlier runs only the shingles are known.
fn shown_text(ordinal: Ordinal, start: usize, texts: &mut Texts<'_>) -> Result<String> {
    match ordinal.which() {
        Which::Own { task, index } => {
            Ok(texts.text(task, index)?.chars().skip(start).take(CHARACTERS).collect())
        }
        Which::Cached { .. } => Ok(String::new()),
    }
}

/// A little before the first character that differs.
fn start_of_difference(one: Ordinal, other: Ordinal, texts: &mut Texts<'_>) -> Result<usize> {
    let (Which::Own { task, index }, Which::Own { task: other_task, index: other_index }) =
        (one.which(), other.which())
    else {
        return Ok(0);
    };
    let one = texts.text(task, index)?.into_owned();
    let other = texts.text(other_task, other_index)?;
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    Ok(same.saturating_sub(BEFORE))
}

fn origin(
    job: &Job,
    ordinal: Ordinal,
    text: String,
    caches: &[CacheFile],
    texts: &mut Texts<'_>,
) -> Result<Value> {
    Ok(match ordinal.which() {
        Which::Own { task, index } => {
            let place = texts.place(task, index)?;
            json!({"source": source(job, task, place.file)?, "document": place.document, "text": text})
        }
        Which::Cached { file, index } => {
            json!({"source": caches[file as usize].name(), "document": index, "text": text})
        }
    })
}

/// The documents that most others were dropped for, with the number of these.
fn clusters(job: &Job, progress: &Progress) -> Result<Vec<(u64, Ordinal)>> {
    let mut count = 0;
    for task in 0..job.plan.tasks {
        count += dropped::count(job, task)?;
    }
    let mut largest: Vec<(u64, Ordinal)> = Vec::new();
    let mut current: Option<(u64, Ordinal)> = None;
    let mut end = |cluster: Option<(u64, Ordinal)>| {
        largest.extend(cluster);
        if largest.len() > 2 * CLUSTERS {
            largest.sort_by_key(|&(count, kept)| (std::cmp::Reverse(count), kept));
            largest.truncate(CLUSTERS);
        }
    };
    let mut source = KeptOf { job, progress };
    in_order(&mut source, (0, u64::MAX), count, &mut Buffer::new(MEMORY), &mut |kept, _| {
        let kept = Ordinal::from_number(kept);
        match &mut current {
            Some((count, of)) if *of == kept => *count += 1,
            _ => end(current.replace((1, kept))),
        }
        Ok(())
    })?;
    end(current);
    largest.sort_by_key(|&(count, kept)| (std::cmp::Reverse(count), kept));
    largest.truncate(CLUSTERS);
    Ok(largest)
}

/// The document that each dropped one is similar to.
struct KeptOf<'a> {
    job: &'a Job,
    progress: &'a Progress,
}

impl Source for KeptOf<'_> {
    fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        for task in 0..self.job.plan.tasks {
            self.progress.check()?;
            dropped::for_each(self.job, task, |drop| {
                each(drop.kept.number(), Ordinal::own(task, drop.index).number())
            })?;
        }
        Ok(())
    }
}
