//! The readers against simple reading of whole files: every document exactly once, whatever the format, the
//! compression, the number of workers and lanes, the size of the blocks, and wherever the run was interrupted.

mod damage;
mod files;
mod interruption;
mod json;
pub(crate) mod oracle;
mod ranges;

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use oracle::{Corpus, corpora};

/// The text of each document that is not empty, by file and index.
type Read = BTreeMap<(u64, u64), String>;

/// Cuts after spaces, so that tests see both cuts and text that has no place to cut.
fn after_spaces(text: &str) -> usize {
    text.rfind(' ').map_or(0, |space| space + 1)
}

fn sources(corpus: &Corpus, lanes: usize, block_bytes: usize) -> Sources {
    let mut files = corpus.specs.clone().into_iter();
    let options = ReadOptions {
        documents: corpus.documents.clone(),
        text_field: "meta.text".into(),
        skip_broken: true,
        block_bytes,
        window_bytes: 64 << 20,
        spill_dir: corpus.folder.path().join("spill"),
        stable_prefix: Box::new(after_spaces),
        ..ReadOptions::default()
    };
    Sources::new(Box::new(move || Ok(files.next())), lanes, options).unwrap()
}

/// Appends a block to what was read; with one worker, the parts of a document come in order.
fn collect(block: &Block, read: &mut Read, ended: &mut Vec<(u64, u64)>) {
    let mut end = 0;
    for (fragment, text) in block.iter() {
        assert!(fragment.start >= end, "fragments overlap");
        end = fragment.end;
        let key = (fragment.file, fragment.document);
        assert!(!ended.contains(&key), "text after the end of {key:?}");
        assert!(!text.is_empty() || (fragment.ends_document && read.contains_key(&key)));
        read.entry(key).or_default().push_str(text);
        if fragment.ends_document {
            ended.push(key);
        }
    }
    assert!(block.text.capacity() >= block.text.len() + SPARE);
}

fn read_all(sources: &Sources) -> Read {
    let (mut read, mut ended, mut block) = (Read::new(), Vec::new(), Block::new());
    while sources.next_block(0, &mut block).unwrap() {
        collect(&block, &mut read, &mut ended);
    }
    assert_eq!(ended.len(), read.len(), "every document ends once");
    read
}

/// With several workers the parts of a document come in any order: these are compared by their characters, and whole
/// documents by their text.
fn read_in_threads(sources: &Sources, workers: usize) -> BTreeMap<(u64, u64), (usize, Vec<String>)> {
    let read = Mutex::new(BTreeMap::<(u64, u64), (usize, Vec<String>)>::new());
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let read = &read;
            scope.spawn(move || {
                let mut block = Block::new();
                while sources.next_block(worker, &mut block).unwrap() {
                    let mut read = read.lock().unwrap();
                    for (fragment, text) in block.iter() {
                        let entry = read.entry((fragment.file, fragment.document)).or_default();
                        entry.0 += usize::from(fragment.ends_document);
                        entry.1.push(text.to_owned());
                    }
                }
            });
        }
    });
    read.into_inner().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_document_is_read_once(
        corpus in corpora(),
        lanes in 1usize..4,
        block_bytes in prop::sample::select(vec![4usize, 7, 64, 1000, 100_000]),
    ) {
        let sources = sources(&corpus, lanes, block_bytes);
        let read = read_all(&sources);
        prop_assert_eq!(&read, &corpus.expected);
        prop_assert_eq!(sources.counters(), corpus.counters.clone());
    }

    #[test]
    fn workers_share_the_documents(
        corpus in corpora(),
        lanes in 1usize..4,
        workers in 1usize..5,
        block_bytes in prop::sample::select(vec![7usize, 64, 1000]),
    ) {
        let sources = sources(&corpus, lanes, block_bytes);
        let read = read_in_threads(&sources, workers);
        prop_assert_eq!(read.len(), corpus.expected.len());
        for (key, (ends, mut parts)) in read {
            let expected = &corpus.expected[&key];
            prop_assert_eq!(ends, 1);
            if let [whole] = &parts[..] {
                prop_assert_eq!(whole, expected);
            }
            // Together the parts must have exactly the characters of the document.
            let mut characters: Vec<char> = parts.drain(..).flat_map(|part| part.chars().collect::<Vec<_>>()).collect();
            let mut wanted: Vec<char> = expected.chars().collect();
            characters.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(characters, wanted);
        }
        let mut counters = sources.counters();
        counters.examples = corpus.counters.examples.clone();
        prop_assert_eq!(counters, corpus.counters.clone());
    }
}
