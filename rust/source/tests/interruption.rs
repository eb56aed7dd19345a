//! Reading that is interrupted anywhere and resumed gives the same as reading without interruption.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn resumed_reading_is_exact(
        corpus in corpora(),
        lanes in prop::collection::vec(1usize..4, 1..5),
        block_bytes in prop::sample::select(vec![7usize, 64, 1000]),
        stop_after in prop::collection::vec(0usize..12, 0..4),
    ) {
        let (mut read, mut ended, mut block) = (Read::new(), Vec::new(), Block::new());
        let mut position: Option<String> = None;
        // Each run has another number of lanes, so that files are resumed by other lanes.
        for (run, stop) in stop_after.iter().copied().chain([usize::MAX]).enumerate() {
            let sources = sources(&corpus, lanes[run % lanes.len()], block_bytes);
            if let Some(position) = &position {
                sources.resume(serde_json::from_str(position).unwrap()).unwrap();
            }
            let mut blocks = 0;
            while blocks < stop && sources.next_block(blocks, &mut block).unwrap() {
                collect(&block, &mut read, &mut ended);
                blocks += 1;
            }
            let here = sources.position().unwrap();
            prop_assert_eq!(&here.counters, &sources.counters());
            position = Some(serde_json::to_string(&here).unwrap());
            if stop == usize::MAX {
                let mut counters = sources.counters();
                // Which eight are kept depends on the order in which the lanes are read.
                counters.examples = corpus.counters.examples.clone();
                prop_assert_eq!(counters, corpus.counters.clone());
            }
        }
        prop_assert_eq!(&read, &corpus.expected);
        prop_assert_eq!(ended.len(), read.len(), "every document ends once");
    }
}

#[test]
fn a_document_of_which_nothing_is_left_still_ends() {
    for text in ["abcdef \nnext", "abcdef "] {
        let content = oracle::Content::Text(text.into());
        let corpus = Corpus::write(Documents::Line, vec![(content, Compression::None)]);
        let first = sources(&corpus, 1, 7);
        let mut block = Block::new();
        first.next_block(0, &mut block).unwrap();
        assert!(!block.fragments[0].ends_document);
        let rest = sources(&corpus, 1, 7);
        rest.resume(first.position().unwrap()).unwrap();
        rest.next_block(0, &mut block).unwrap();
        let ended = &block.fragments[0];
        assert_eq!((ended.start, ended.end, ended.document), (0, 0, 0));
        assert!(ended.ends_document);
        while rest.next_block(0, &mut block).unwrap() {}
        assert_eq!(rest.counters(), corpus.counters);
    }
}

#[test]
fn resuming_needs_the_same_files() {
    let content = || (oracle::Content::Text(b"one two three".to_vec()), Compression::None);
    let mut corpus = Corpus::write(Documents::File, vec![content(), content()]);
    let first = sources(&corpus, 1, 4);
    let mut block = Block::new();
    first.next_block(0, &mut block).unwrap();
    let position = first.position().unwrap();

    let again = sources(&corpus, 1, 4);
    again.resume(position.clone()).unwrap();
    again.next_block(0, &mut block).unwrap();
    assert!(matches!(again.resume(position.clone()), Err(crate::error::Error::Invalid(_))));

    corpus.specs.remove(0);
    let other = sources(&corpus, 1, 4).resume(position.clone());
    assert!(matches!(other, Err(crate::error::Error::Changed { .. })));
    corpus.specs.clear();
    assert!(sources(&corpus, 1, 4).resume(position).is_err());
}

#[test]
fn standard_input_cannot_be_resumed() {
    let corpus = Corpus::write(Documents::File, vec![]);
    let position = Position {
        files_taken: 1,
        open: vec![FilePosition {
            file: 0,
            path: "-".into(),
            size: None,
            range: None,
            counted: 5,
            place: Place::Text { offset: 5, document: 0, continues: true },
        }],
        counters: Counters::default(),
    };
    let spec = FileSpec {
        path: "-".into(),
        format: Format::Text,
        compression: Compression::None,
        size: None,
        modified: None,
        range: None,
    };
    let mut files = Some(spec).into_iter();
    let sources = Sources::new(Box::new(move || Ok(files.next())), 1, ReadOptions::default()).unwrap();
    let error = sources.resume(position).unwrap_err().to_string();
    assert!(error.contains("standard input cannot be resumed"), "{error}");
    drop(corpus);
}
