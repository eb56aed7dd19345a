//! The hand-written patterns against their regexes on fancy-regex.

use std::sync::OnceLock;

use fancy_regex::Regex;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Pattern, floor, spellings, stable};

const NAMES: [&str; 5] = ["gpt2", "cl100k", "o200k", "llama3", "qwen2"];

const UNCAPPED: usize = usize::MAX;

fn pieces<'a>(pattern: &Pattern, text: &'a str, cap: usize) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut expected_start = 0;
    pattern.split(text, cap, |start, end| {
        assert_eq!(start, expected_start);
        assert!(end > start && end - start <= cap);
        expected_start = end;
        pieces.push(&text[start..end]);
    });
    assert_eq!(expected_start, text.len());
    pieces
}

/// The pieces that the regex gives, seeing `cap` bytes from the start of each piece.
fn oracle<'a>(regex: &Regex, text: &'a str, cap: usize) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let window = &text[start..floor(text, start.saturating_add(cap))];
        let found = regex.find(window).unwrap();
        let found = found.expect("the patterns match everywhere");
        assert_eq!(found.start(), 0);
        pieces.push(found.as_str());
        start += found.end();
    }
    pieces
}

/// The named patterns with their regexes, which take longer to compile than to run here.
fn references() -> &'static [(Pattern, Regex)] {
    static REFERENCES: OnceLock<Vec<(Pattern, Regex)>> = OnceLock::new();
    REFERENCES.get_or_init(|| {
        let named = NAMES.map(|name| Pattern::named(name).unwrap());
        named.map(|pattern| (pattern.clone(), Regex::new(pattern.regex()).unwrap())).into()
    })
}

/// The fallback of `stable_prefix`, which it rarely needs in short texts, because there is a word.
fn prefix_by_scanning(pattern: &Pattern, text: &str, cap: usize) -> usize {
    match pattern {
        Pattern::Gpt2 => stable::by_scanning(super::Gpt2, text, cap),
        Pattern::Cl100k => stable::by_scanning(super::CL100K, text, cap),
        Pattern::O200k => stable::by_scanning(super::O200k, text, cap),
        Pattern::Llama3 => stable::by_scanning(super::LLAMA3, text, cap),
        Pattern::Qwen2 => stable::by_scanning(super::QWEN2, text, cap),
        Pattern::Whole | Pattern::Custom(_) => unreachable!("these have functions of their own"),
    }
}

fn among(characters: &str) -> impl Strategy<Value = char> + use<> {
    select(characters.chars().collect::<Vec<_>>())
}

/// The characters that matter to the patterns.
fn nasty_character() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => among("abzABZ019 \t\r\n  \n\n''''//.,(_-!\u{b}\u{c}\u{1c}\0"),
        3 => among("'''stremvldSTREMVLD"),
        // Long s, Kelvin, white space and what looks like it, marks, title case, modifiers.
        1 => among("\u{17f}\u{212a}\u{85}\u{a0}\u{200b}\u{180e}\u{3000}\u{2028}\u{301}\u{20dd}"),
        1 => among("ǳǅʰʹ中あ²Ⅷ٣éÉßŉﬆ。’😀\u{10ffff}\u{1d7d8}\u{10400}"),
    ]
}

fn nasty_ascii() -> impl Strategy<Value = char> {
    prop_oneof![
        6 => among("abAB01  \t\r\n''''//.("),
        4 => among("'stremvldSTREMVLD"),
        1 => (0u8..128).prop_map(char::from),
    ]
}

fn nasty_text(longest: usize) -> impl Strategy<Value = String> {
    let text = |characters: Vec<char>| characters.into_iter().collect::<String>();
    let run = |(character, count): (char, usize)| character.to_string().repeat(count);
    let runs = move |runs: Vec<_>| runs.into_iter().map(run).collect::<String>();
    let nearly_ascii = prop_oneof![40 => nasty_ascii(), 1 => nasty_character()];
    prop_oneof![
        3 => prop::collection::vec(nasty_character(), 0..longest).prop_map(text),
        3 => prop::collection::vec(nasty_ascii(), 0..longest).prop_map(text),
        2 => prop::collection::vec(nearly_ascii, 0..longest).prop_map(text),
        1 => prop::collection::vec(any::<char>(), 0..longest / 2).prop_map(text),
        1 => prop::collection::vec((nasty_character(), 1usize..70), 1..8).prop_map(runs),
    ]
}

/// No cap, a cap so low that it always cuts, and one around the size of a block.
fn any_cap() -> impl Strategy<Value = usize> {
    prop_oneof![Just(UNCAPPED), 4usize..20, 60usize..70]
}

proptest! {
    #[test]
    fn pieces_are_those_of_the_regex(text in nasty_text(300), cap in any_cap()) {
        for (pattern, regex) in references() {
            let expected = oracle(regex, &text, cap);
            prop_assert_eq!(pieces(pattern, &text, cap), expected, "{:?}", pattern);
        }
    }

    /// A block of 64 bytes can begin at any piece, so every offset of a text is tested.
    #[test]
    fn pieces_do_not_depend_on_where_blocks_fall(text in nasty_text(200), shift in 0usize..130) {
        let text = format!("{}\n{text}", "x".repeat(shift));
        for (pattern, regex) in references() {
            let expected = oracle(regex, &text, UNCAPPED);
            prop_assert_eq!(pieces(pattern, &text, UNCAPPED), expected, "{:?}", pattern);
        }
    }

    #[test]
    fn any_bytes_read_as_utf8_are_split_without_gaps(
        bytes in prop::collection::vec(any::<u8>(), 0..400), cap in any_cap()
    ) {
        let text = String::from_utf8_lossy(&bytes);
        for name in NAMES.iter().chain(&["whole"]) {
            let pattern = Pattern::named(name).unwrap();
            prop_assert_eq!(pieces(&pattern, &text, cap).concat(), text.as_ref());
            prop_assert!(pattern.stable_prefix(&text, cap) <= text.len());
        }
    }

    #[test]
    fn a_stable_prefix_keeps_its_pieces_whatever_follows(
        text in nasty_text(150), following in nasty_text(60), cap in any_cap()
    ) {
        let longer = format!("{text}{following}");
        for (pattern, _) in references() {
            let expected = pieces(pattern, &longer, cap);
            for prefix in [
                pattern.stable_prefix(&text, cap), prefix_by_scanning(pattern, &text, cap)
            ] {
                let mut halves = pieces(pattern, &text[..prefix], cap);
                halves.extend(pieces(pattern, &longer[prefix..], cap));
                prop_assert_eq!(&halves, &expected, "{:?} cut at {}", pattern, prefix);
            }
        }
    }

    #[test]
    fn a_custom_regex_finds_what_the_named_pattern_finds(
        text in nasty_text(200), cap in any_cap()
    ) {
        static CUSTOM: OnceLock<Vec<Pattern>> = OnceLock::new();
        let custom = CUSTOM.get_or_init(|| {
            references().iter().map(|(_, regex)| Pattern::custom(regex.as_str()).unwrap()).collect()
        });
        for ((named, _), custom) in references().iter().zip(custom) {
            prop_assert_eq!(pieces(custom, &text, cap), pieces(named, &text, cap));
        }
    }

    #[test]
    fn spellings_give_the_pieces_of_their_pattern(text in nasty_text(100)) {
        static COMPILED: OnceLock<Vec<(Pattern, Regex)>> = OnceLock::new();
        let compile = |(pattern, spelling)| (pattern, Regex::new(spelling).unwrap());
        for (pattern, regex) in COMPILED.get_or_init(|| spellings::all().map(compile).collect()) {
            let expected = oracle(regex, &text, UNCAPPED);
            prop_assert_eq!(pieces(pattern, &text, UNCAPPED), expected, "{}", regex.as_str());
        }
    }
}

/// Every short ending of a text, with continuations that could change pieces.
#[test]
fn a_stable_prefix_holds_for_every_ending() {
    let alphabet = ["A", "a", "中", "'", "!", " ", "\n", "1"];
    let mut endings = vec![String::new()];
    for _ in 0..4 {
        let longer = |ending: &String| alphabet.map(|character| format!("{ending}{character}"));
        endings = endings.iter().flat_map(longer).collect();
    }
    for text in endings.iter().map(|ending| format!("1, 2, 3,{ending}AAA'")) {
        // With a word and an apostrophe after the ending, with the word, with neither.
        for end in [text.len(), text.len() - 1, text.len() - 4] {
            let text = &text[..end];
            for (pattern, _) in references() {
                for cap in [5, UNCAPPED] {
                    let prefix = prefix_by_scanning(pattern, text, cap);
                    let first_half = pieces(pattern, &text[..prefix], cap);
                    for following in ["b", "s", "ll", "中", "\n", "' "] {
                        let longer = format!("{text}{following}");
                        let mut halves = first_half.clone();
                        halves.extend(pieces(pattern, &longer[prefix..], cap));
                        let expected = pieces(pattern, &longer, cap);
                        assert_eq!(halves, expected, "{pattern:?} {cap} cut at {prefix}");
                    }
                }
            }
        }
    }
}

#[test]
fn white_space_across_the_end_of_a_block_is_split_right() {
    let padding = "x".repeat(70);
    for space in [" ", "\u{3000}", " \u{a0}"] {
        for end in ["\n", "y", "1", "!", ""] {
            for shift in 0..66 {
                let text = format!("{}\n  {space}{end}{padding}", "y".repeat(shift));
                for (pattern, regex) in references() {
                    let expected = oracle(regex, &text, UNCAPPED);
                    assert_eq!(pieces(pattern, &text, UNCAPPED), expected, "{pattern:?}");
                }
            }
        }
    }
}

fn split_by<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    pieces(&Pattern::named(name).unwrap(), text, UNCAPPED)
}

#[test]
fn the_patterns_differ_where_they_should() {
    let expected = ["it", "'s", " ", " 1234", "!", "\n"];
    assert_eq!(split_by("gpt2", "it's  1234!\n"), expected);
    let expected = ["it", "'S", " ", " ", "123", "4", "!\n"];
    assert_eq!(split_by("llama3", "it'S  1234!\n"), expected);
    assert_eq!(split_by("qwen2", "12"), ["1", "2"]);
    let expected = ["it'll", " camel", "Case", "\n", "//", "x"];
    assert_eq!(split_by("o200k", "it'll camelCase\n//x"), expected);
    assert_eq!(split_by("o200k", ";\n//x"), [";\n//", "x"]);
    assert_eq!(split_by("o200k", "A中B"), ["A中", "B"]);
    // The only difference between tiktoken's cl100k and Llama 3.
    assert_eq!(split_by("cl100k", "a\n "), ["a", "\n "]);
    assert_eq!(split_by("llama3", "a\n "), ["a", "\n", " "]);
    assert_eq!(split_by("cl100k", "a\n b"), ["a", "\n", " b"]);
    // Ignoring case, the long s is an s; no other character outside ASCII is one of these letters.
    assert_eq!(split_by("cl100k", "'\u{17f}x"), ["'\u{17f}", "x"]);
    assert_eq!(split_by("gpt2", "'\u{17f}x"), ["'", "\u{17f}x"]);
    assert_eq!(split_by("whole", "a b\n"), ["a b\n"]);
    assert_eq!(split_by("whole", ""), [""; 0]);
}

#[test]
fn spellings_are_recognized() {
    for (pattern, spelling) in spellings::all() {
        let recognized = Pattern::recognize(spelling).unwrap();
        assert_eq!(recognized.regex(), pattern.regex());
    }
    assert!(Pattern::recognize(r"\w+").is_none());
    assert!(Pattern::named("gpt5").is_none());
}

#[test]
fn the_cap_cuts_and_counts() {
    for name in NAMES {
        let pattern = Pattern::named(name).unwrap();
        let mut lengths = Vec::new();
        let text = "aaaaaaaaaa bbbb ééé";
        let cut_off = pattern.split(text, 6, |start, end| lengths.push(end - start));
        // " bbbb" is below the cap, " éé" would end inside the next é.
        assert_eq!((lengths, cut_off), (vec![6, 4, 5, 5, 2], 2), "{name}");
        assert_eq!(pattern.split("aaaa bbb", 4, |_, _| ()), 0, "{name}");
    }
    assert_eq!(Pattern::Whole.split("aaaaaaaaaa", 4, |_, _| ()), 2);
}

/// Anything worse than linear takes minutes here.
#[test]
fn pathological_texts_take_linear_time() {
    let many = 1 << 20;
    let texts = [
        " ".repeat(many),
        "\n ".repeat(many),
        "\n  ".repeat(many),
        " \t\r\n \n".repeat(many),
        format!("\n{}", " ".repeat(5000)).repeat(200),
        "\n\n\u{a0}".repeat(many),
        format!("\n{}x", " ".repeat(many)),
        "'".repeat(many),
        "'s".repeat(many),
        "a".repeat(4 * many),
        "A".repeat(many),
        "A中B".repeat(many / 4),
        "\u{301}A".repeat(many),
        "1".repeat(many),
        "!\n/".repeat(many),
        "\u{3000}".repeat(many),
        "é".repeat(many),
    ];
    for text in &texts {
        for (pattern, _) in references() {
            for cap in [64, 4096, UNCAPPED] {
                pattern.split(text, cap, |_, _| ());
                let left = text.len() - pattern.stable_prefix(text, cap);
                assert!(cap == UNCAPPED || left < 3 * cap, "{pattern:?} {cap} leaves {left}");
            }
        }
    }
}

#[test]
fn a_custom_regex_makes_pieces_of_gaps_and_empty_matches() {
    // What Hugging Face's Split(Regex(...), "isolated") gives.
    for (regex, text, expected) in [
        (r"\d+", "ab12cd", vec!["ab", "12", "cd"]),
        (r"(?=[A-Z])", "fooBarBaz", vec!["foo", "Bar", "Baz"]),
        (r"x*", "abxxc", vec!["a", "b", "xx", "c"]),
        (r"a*|b", "bbab", vec!["b", "b", "a", "b"]),
        (r"(?<=a)b", "abb", vec!["a", "b", "b"]),
        (r"z", "ab", vec!["ab"]),
    ] {
        let pattern = Pattern::custom(regex).unwrap();
        assert_eq!(pieces(&pattern, text, UNCAPPED), expected, "{regex}");
        assert_eq!(pattern.regex(), regex);
    }
    assert!(Pattern::custom("(").is_err());
}

#[test]
fn a_custom_regex_is_capped_in_linear_time() {
    let text = "a b".repeat(100_000);
    for regex in [r"z", r"[ab ]+", r"\s+(?!\S)|\s+", r"b"] {
        let pattern = Pattern::custom(regex).unwrap();
        let expected = pieces(&pattern, &text, 4096);
        let stable = pattern.stable_prefix(&text, 4096);
        assert!(text.len() - stable <= 3 * 4096, "{regex} is stable up to {stable}");
        let mut halves = pieces(&pattern, &text[..stable], 4096);
        halves.extend(pieces(&pattern, &text[stable..], 4096));
        assert_eq!(halves, expected, "{regex}");
    }
}

#[test]
fn a_custom_regex_that_fails_is_counted() {
    let pattern = Pattern::custom(r"(?:a|b|ab)*(?>c)").unwrap();
    // The `c` prevents the engine from seeing immediately that there is no match.
    let text = format!("{} c", "ab".repeat(5_000));
    assert_eq!(pieces(&pattern.clone(), &text, UNCAPPED).concat(), text);
    assert!(pattern.failures() > 0);
    assert_eq!(Pattern::Gpt2.failures(), 0);
}
