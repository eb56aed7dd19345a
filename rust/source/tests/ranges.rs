//! Files read in parts give the same as read as a whole, wherever they are divided.

use super::damage::{read_strictly, single};
use super::oracle::{jsonl_bytes, parquet_file, text_bytes};
use super::*;
use crate::error::Error;

fn all_documents() -> impl Strategy<Value = Documents> {
    prop_oneof![
        Just(Documents::File),
        Just(Documents::Line),
        Just(Documents::Separator("<|end|>".into())),
        Just(Documents::Separator("aab".into())),
        Just(Documents::Separator("é".into())),
        Just(Documents::Separator("\n".into())),
    ]
}

/// Text or jsonl, possibly with a byte order mark.
fn divisible() -> impl Strategy<Value = (Format, Vec<u8>)> {
    let mark = prop_oneof![
        6 => Just(&b""[..]),
        3 => Just(&b"\xEF\xBB\xBF"[..]),
        1 => Just(&b"\xFF\xFE"[..]),
        1 => Just(&b"\x00\x00\xFE\xFF"[..]),
    ];
    let content = prop_oneof![
        text_bytes(60).prop_map(|bytes| (Format::Text, bytes)),
        jsonl_bytes().prop_map(|bytes| (Format::Jsonl, bytes)),
    ];
    (mark, content).prop_map(|(mark, (format, bytes))| (format, [mark, &bytes[..]].concat()))
}

/// Divides the only file of the corpus into parts that begin at these places.
fn divide(corpus: &mut Corpus, places: &[prop::sample::Index]) {
    let spec = corpus.specs.pop().unwrap();
    let size = spec.size.unwrap();
    let mut edges: Vec<u64> = places.iter().map(|place| place.index(size as usize + 1) as u64).collect();
    edges.extend([0, size]);
    edges.sort_unstable();
    edges.dedup();
    if size == 0 {
        edges.push(0);
    }
    let parts = edges.windows(2).map(|edge| Range::Bytes { start: edge[0], end: edge[1] });
    corpus.specs = parts.map(|range| FileSpec { range: Some(range), ..spec.clone() }).collect();
}

/// Texts in the order of the input; joined to one if files are documents, because dividing cuts these.
fn texts(read: Read, documents: &Documents, format: Format) -> Vec<String> {
    let texts: Vec<String> = read.into_values().collect();
    if *documents == Documents::File && format == Format::Text { vec![texts.concat()] } else { texts }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn parts_tile_a_file(
        (format, bytes) in divisible(),
        documents in all_documents(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        lanes in 1usize..4,
        block_bytes in prop::sample::select(vec![7usize, 64, 1000]),
        stop_after in prop::collection::vec(0usize..12, 0..3),
    ) {
        let mut corpus = single(&bytes, format, Compression::None);
        corpus.documents = documents;
        let whole = sources(&corpus, 1, 100_000);
        let wanted = texts(read_all(&whole), &corpus.documents, format);
        divide(&mut corpus, &places);
        let together = sources(&corpus, 1, block_bytes);
        prop_assert_eq!(&texts(read_all(&together), &corpus.documents, format), &wanted);
        let mut counters = together.counters();
        if corpus.documents == Documents::File && format == Format::Text {
            prop_assert!(counters.documents >= 1 && counters.documents <= corpus.specs.len() as u64);
            counters.documents = 1;
        }
        prop_assert_eq!(&counters, &whole.counters());

        let (mut read, mut ended, mut block) = (Read::new(), Vec::new(), Block::new());
        let mut position: Option<String> = None;
        for stop in stop_after.into_iter().chain([usize::MAX]) {
            let sources = sources(&corpus, lanes, block_bytes);
            if let Some(position) = &position {
                sources.resume(serde_json::from_str(position).unwrap()).unwrap();
            }
            let mut blocks = 0;
            while blocks < stop && sources.next_block(blocks, &mut block).unwrap() {
                collect(&block, &mut read, &mut ended);
                blocks += 1;
            }
            position = Some(serde_json::to_string(&sources.position().unwrap()).unwrap());
            if stop == usize::MAX {
                let counters = Counters { examples: together.counters().examples, ..sources.counters() };
                prop_assert_eq!(counters, together.counters());
            }
        }
        prop_assert_eq!(&texts(read, &corpus.documents, format), &wanted);
    }

    #[test]
    fn row_groups_tile_a_table(
        rows in prop::collection::vec(prop::option::weighted(0.8, text_bytes(6)), 0..60),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        block_bytes in prop::sample::select(vec![7usize, 64, 1000]),
        stop in 0usize..20,
    ) {
        let mut corpus = single(&parquet_file(&rows), Format::Parquet, Compression::None);
        let whole = sources(&corpus, 1, 100_000);
        let wanted: Vec<String> = read_all(&whole).into_values().collect();
        let groups = rows.len().div_ceil(7);
        prop_assert_eq!(row_group_bytes(&corpus.specs[0].path).unwrap().unwrap().len(), groups);
        let mut edges: Vec<usize> = places.iter().map(|place| place.index(groups + 1)).collect();
        edges.extend([0, groups]);
        edges.sort_unstable();
        edges.dedup();
        if groups == 0 {
            edges.push(0);
        }
        let spec = corpus.specs.pop().unwrap();
        let parts = edges.windows(2).map(|edge| Range::RowGroups { first: edge[0], end: edge[1] });
        corpus.specs = parts.map(|range| FileSpec { range: Some(range), ..spec.clone() }).collect();

        let (mut read, mut ended, mut block) = (Read::new(), Vec::new(), Block::new());
        let first = sources(&corpus, 1, block_bytes);
        for _ in 0..stop {
            if first.next_block(0, &mut block).unwrap() {
                collect(&block, &mut read, &mut ended);
            }
        }
        let second = sources(&corpus, 2, block_bytes);
        second.resume(first.position().unwrap()).unwrap();
        while second.next_block(0, &mut block).unwrap() {
            collect(&block, &mut read, &mut ended);
        }
        prop_assert_eq!(read.into_values().collect::<Vec<_>>(), wanted);
        prop_assert_eq!(second.counters(), whole.counters());
    }
}

#[test]
fn errors_name_the_line_of_the_file() {
    let good = "{\"text\": \"a b\"}\n".repeat(50);
    let bytes = format!("{good}\n{{\"text\": 1}}\n{good}");
    for start in [0, 1, 400, 800, 801, 802, 900] {
        let mut corpus = single(bytes.as_bytes(), Format::Jsonl, Compression::None);
        corpus.specs[0].range = Some(Range::Bytes { start, end: bytes.len() as u64 });
        match read_strictly(&corpus, "text") {
            Err(error) => {
                assert!(
                    start < 802 && error.to_string().contains("file:52 does not have a string"),
                    "{error}"
                )
            }
            Ok(_) => assert!(start >= 802),
        }
    }
}

#[test]
fn parts_of_changed_files_are_rejected() {
    let text = "line\n".repeat(100);
    for (change, wanted) in [("line\n", "grown"), ("", "shrunk")] {
        for range in [(0, 100), (100, 200), (400, 500)] {
            let mut corpus = single(text.as_bytes(), Format::Text, Compression::None);
            corpus.documents = Documents::Line;
            corpus.specs[0].range = Some(Range::Bytes { start: range.0, end: range.1 });
            let now = if change.is_empty() { text[..300].to_owned() } else { format!("{text}{change}") };
            std::fs::write(&corpus.specs[0].path, now).unwrap();
            let error = read_strictly(&corpus, "text").unwrap_err();
            assert!(matches!(&error, Error::Changed { what, .. } if what.contains(wanted)), "{error}");
        }
    }
    let table = parquet_file(&[Some(b"a".to_vec())]);
    let mut corpus = single(&table, Format::Parquet, Compression::None);
    corpus.specs[0].range = Some(Range::RowGroups { first: 1, end: 2 });
    let error = read_strictly(&corpus, "meta.text").unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
}

#[test]
fn what_cannot_be_divided_is_read_as_a_whole() {
    let separator = |text: &str| Documents::Separator(text.into());
    let text = |documents| can_split(&documents, Format::Text, Compression::None);
    assert!(
        text(Documents::File)
            && text(Documents::Line)
            && text(separator("<|end|>"))
            && text(separator("aab"))
    );
    for overlapping in ["\n\n", "aba", "----", "<<x<<", "\u{FFFD}", "\u{FEFF}a", ""] {
        assert!(!text(separator(overlapping)), "{overlapping:?}");
    }
    assert!(can_split(&separator("\n\n"), Format::Jsonl, Compression::None));
    assert!(can_split(&Documents::File, Format::Parquet, Compression::None));
    assert!(!can_split(&Documents::Line, Format::Text, Compression::Gz));
    let mut corpus = single(b"abc", Format::Text, Compression::Gz);
    corpus.specs[0].range = Some(Range::Bytes { start: 0, end: 3 });
    assert!(matches!(read_strictly(&corpus, "text"), Err(Error::Invalid(_))));
}
