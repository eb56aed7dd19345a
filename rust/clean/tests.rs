//! Against the definitions, written out: one pass per step, on owned strings. The Python tests do the same over all
//! of Unicode with the tables of Python.

use super::characters::{ASCII, Characters, DECOMPOSES, UNSETTLED};
use super::*;
use crate::unicode::{Classes, REST, SPACE};
use proptest::prelude::*;
use std::collections::HashSet;
use unicode_normalization::char::canonical_combining_class;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

fn is_space(character: char) -> bool {
    Classes::get().of(character as u32) & SPACE != 0
}

fn is_symbol(character: char) -> bool {
    Classes::get().of(character as u32) & REST != 0
}

fn is_blank(character: char) -> bool {
    is_space(character) && !matches!(character, '\n'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_removed(character: char) -> bool {
    let code_point = character as u32;
    (character.is_control() && !matches!(character, '\t' | '\n'))
        || matches!(code_point, 0xFEFF | 0xFDD0..=0xFDEF)
        || matches!(code_point & 0xFFFF, 0xFFFE | 0xFFFF)
}

fn arranged(lines: Vec<String>) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut blank = 0;
    for line in lines {
        blank = if line.is_empty() { blank + 1 } else { 0 };
        if blank <= 2 && !(line.is_empty() && kept.is_empty()) {
            kept.push(line);
        }
    }
    kept.join("\n").trim_end_matches(is_space).to_owned()
}

fn normalized(text: &str, collapse: bool) -> String {
    let text = text.replace("\r\n", "\n").replace(['\r', '\u{85}', '\u{2028}', '\u{2029}'], "\n");
    let text: String = text.chars().filter(|&character| !is_removed(character)).nfc().collect();
    let lines = text.split('\n').map(|line| {
        let line = line.trim_end_matches(is_blank);
        let rest = line.trim_start_matches(is_blank);
        let words: Vec<&str> = rest.split(is_blank).filter(|word| !word.is_empty()).collect();
        let indentation = &line[..line.len() - rest.len()];
        if collapse { format!("{indentation}{}", words.join(" ")) } else { line.to_owned() }
    });
    arranged(lines.collect())
}

fn share_above(limit: f64, text: &str, is_counted: impl Fn(char) -> bool) -> bool {
    let count = text.chars().filter(|&character| is_counted(character)).count();
    count as f64 > limit * text.chars().count() as f64
}

/// The cleaned text, the rule that drops it, and what the line rules dropped.
fn oracle(text: &str, settings: &Settings) -> (String, Option<Rule>, Dropped) {
    let mut text =
        if settings.normalize { normalized(text, settings.collapse_blanks) } else { text.to_owned() };
    let mut dropped = Dropped::default();
    if settings.filter {
        let judged: Vec<(&str, Option<usize>)> = text
            .split_inclusive('\n')
            .map(|whole| {
                let line = whole.strip_suffix('\n').unwrap_or(whole);
                let length = line.chars().count() as u64;
                let too_long = settings.max_line_chars > 0 && length > settings.max_line_chars;
                let rules = [
                    length < settings.min_line_chars,
                    too_long,
                    share_above(settings.max_line_symbols, line, is_symbol),
                ];
                let exempt = line.chars().all(is_space);
                (whole, rules.iter().position(|&applies| applies && !exempt))
            })
            .collect();
        let left: String = judged.iter().filter(|(_, rule)| rule.is_none()).map(|(line, _)| *line).collect();
        for (line, rule) in judged {
            if let Some(rule) = rule {
                dropped.add(Rule::LINES[rule], 1, line.len());
            }
        }
        text = if settings.normalize && left != text {
            arranged(left.split('\n').map(str::to_owned).collect())
        } else {
            left
        };
    }
    let length = text.chars().count() as u64;
    let lines: Vec<&str> = text.split('\n').filter(|line| !line.chars().all(is_space)).collect();
    let mut seen = HashSet::new();
    let repeated: usize =
        lines.iter().filter(|line| !seen.insert(**line)).map(|line| line.chars().count()).sum();
    let total: usize = lines.iter().map(|line| line.chars().count()).sum();
    let rules = [
        text.chars().all(is_space),
        settings.filter && length < settings.min_chars,
        settings.filter && settings.max_chars > 0 && length > settings.max_chars,
        settings.filter && share_above(settings.max_symbols, &text, is_symbol),
        settings.filter && lines.len() >= 4 && repeated as f64 > settings.max_repeated * total as f64,
        settings.filter && share_above(settings.max_invalid, &text, |character| character == '\u{FFFD}'),
    ];
    let rule = rules.iter().position(|&applies| applies).map(|first| Rule::DOCUMENTS[first]);
    (text, rule, dropped)
}

fn check(cleaner: &mut Cleaner, text: &str) {
    let settings = cleaner.settings.clone();
    let (expected, rule, lines) = oracle(text, &settings);
    let mut dropped = Dropped::default();
    let verdict = cleaner.clean(text, &mut dropped);
    match rule {
        None => assert_eq!(verdict, Verdict::Keep(&expected), "{text:?} {settings:?}"),
        Some(rule) => assert_eq!(verdict, Verdict::Drop { rule, text: &expected }, "{text:?} {settings:?}"),
    }
    assert_eq!(dropped, lines, "{text:?} {settings:?}");
    assert_eq!(Survey::of(&expected, false).characters, expected.chars().count() as u64);
    // Cleaning a cleaned text gives the same verdict on the same text, and copies nothing.
    let mut again = Dropped::default();
    let (Verdict::Keep(second) | Verdict::Drop { text: second, .. }) = cleaner.clean(&expected, &mut again);
    assert_eq!(second, expected, "{text:?} {settings:?}");
    assert_eq!(second.as_ptr(), expected.as_ptr(), "{text:?} {settings:?}");
    assert_eq!(again, Dropped::default());
}

/// Characters that are likely to matter, any others, and words to fill the chunks of 64 bytes.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        6 => prop::sample::select(vec![
            "\n", "\n", "\n\n\n", "\r\n", "\r", "\u{85}", "\u{2028}", "\u{2029}", " ", "  ", "\t", "\u{A0}", "\u{2000}",
            "\u{3000}", "\0", "\u{B}", "\u{C}", "\u{7F}", "\u{80}", "\u{FEFF}", "\u{FFFE}", "\u{FDD0}", "\u{1FFFF}", "\u{FFFD}",
            "e", "ê", "\u{301}", "\u{302}", "\u{323}", "\u{344}", "\u{93C}", "क", "\u{9BE}", "\u{9C7}", "\u{1100}", "\u{1161}",
            "\u{11A8}", "가", "\u{F73}", "\u{F71}", "\u{212B}", "\u{1D160}", "}", "{", "the same line\n",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        2 => "[a-z ,.]{1,80}",
        1 => "[а-я一-三\n ]{1,40}",
        1 => "\\PC{0,6}",
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            normalize: true,
            collapse_blanks: false,
            filter: true,
            min_chars: 1,
            max_chars: 0,
            max_symbols: 0.6,
            max_repeated: 0.5,
            max_invalid: 0.02,
            min_line_chars: 0,
            max_line_chars: 100_000,
            max_line_symbols: 1.0,
        }
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    let numbers = (0u64..20, prop_oneof![Just(0u64), 10u64..100], 0u64..8, prop_oneof![Just(0u64), 5u64..60]);
    let share = || prop_oneof![Just(0.0), Just(0.5), Just(1.0), 0.0..1.0];
    (switches, numbers, share(), share(), share(), share()).prop_map(
        |(switches, numbers, max_symbols, max_repeated, max_invalid, max_line_symbols)| Settings {
            normalize: switches.0,
            collapse_blanks: switches.1,
            filter: switches.2,
            min_chars: numbers.0,
            max_chars: numbers.1,
            min_line_chars: numbers.2,
            max_line_chars: numbers.3,
            max_symbols,
            max_repeated,
            max_invalid,
            max_line_symbols,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cleaning_is_what_the_definitions_say(texts in prop::collection::vec(texts(), 1..4), settings in settings()) {
        let mut cleaner = Cleaner::new(settings);
        texts.iter().for_each(|text| check(&mut cleaner, text));
    }

    #[test]
    fn cleaning_by_default_is_what_the_definitions_say(text in texts(), collapse_blanks in any::<bool>()) {
        check(&mut Cleaner::new(Settings { collapse_blanks, ..Settings::default() }), &text);
    }
}

#[test]
fn every_code_point_is_what_the_definitions_say() {
    let characters = Characters::get();
    let mut cleaner = Cleaner::new(Settings { max_invalid: 1.0, ..Settings::default() });
    for character in '\0'..=char::MAX {
        let flags = characters.of(character as u32);
        if character.is_ascii() {
            assert_eq!(flags, ASCII[character as usize]);
        }
        let alone = character.to_string();
        let yes =
            is_nfc_quick(alone.chars()) == IsNormalized::Yes && canonical_combining_class(character) == 0;
        assert_eq!(flags & UNSETTLED == 0, yes, "{character:?}");
        assert_eq!(flags & DECOMPOSES != 0, alone.nfd().ne(alone.chars()), "{character:?}");
        assert_eq!(flags & characters::SYMBOL != 0, is_symbol(character), "{character:?}");
        if flags != 0 && flags != characters::SYMBOL {
            check(&mut cleaner, &alone);
            check(&mut cleaner, &format!("a {character}\u{323} {character}\n.\u{301}{character}{character}"));
        }
    }
}

/// All pairs of a character that can compose with one that may follow it.
#[test]
fn every_pair_composes_as_nfc_says() {
    let of = |mask: u8| {
        ('\0'..=char::MAX).filter(move |&character| Characters::get().of(character as u32) & mask != 0)
    };
    let is_hangul = |character: &char| matches!(character, '\u{AC02}'..='\u{D7A3}');
    let mut firsts: Vec<char> =
        of(UNSETTLED | DECOMPOSES).filter(|character| !is_hangul(character)).collect();
    firsts.extend("aeiouAEIOU<=>\u{5D0}\u{915}\u{9C7}\u{BC6}\u{DD9}\u{1100}가".chars());
    let mut text = String::new();
    let mut out = String::new();
    for second in of(characters::MAY_COMPOSE) {
        text.clear();
        firsts.iter().for_each(|&first| text.extend(['.', first, second]));
        let expected: String = text.nfc().collect();
        normalize::compose(&text, &mut out);
        assert_eq!(out, expected, "{second:?}");
        // Each by itself: a wrong "nothing changes" must not be hidden by a neighbor.
        for &first in firsts.iter().step_by(7) {
            let pair = String::from_iter([first, second]);
            assert_eq!(Survey::of(&pair, true).decomposed, pair.nfc().ne(pair.chars()), "{pair:?}");
        }
    }
}

#[test]
fn pathological_texts() {
    let default = || Cleaner::new(Settings::default());
    let line = |text: &str, times: usize| text.repeat(times);
    for text in [
        line(" ", 1 << 20),
        line("\n", 1 << 20),
        line("\r", 1 << 20),
        line("\u{FEFF}", 300_000),
        line("a\u{301}", 200_000),
        format!("a{}", line("\u{301}\u{323}", 200_000)),
        line("\u{1D160}", 100_000),
        line("x", 1 << 20),
        line("a\n", 1 << 19),
        (0..100_000).map(|number| format!("{number:x}\n")).collect(),
        line("}\n", 9) + "fn main() { let words = text.split_whitespace().count(); }\n",
        String::from("\r\n\u{2028}"),
        String::new(),
    ] {
        check(&mut default(), &text);
        check(&mut Cleaner::new(Settings { collapse_blanks: true, ..Settings::default() }), &text);
    }
}

#[test]
fn lines_with_the_same_hash_are_distinguished() {
    let text = "ab\nabc\nb\nab\nabc\nabcd";
    let mut repeats = Repeats::default();
    repeats.reset(text.len(), 5);
    let found: Vec<bool> =
        lines::Lines::of(text).map(|(at, line)| repeats.has_or_insert(text, at, line, u64::MAX)).collect();
    assert_eq!(found, [false, false, false, true, true, false]);
}

#[test]
fn the_memory_of_a_long_document_is_freed() {
    let mut cleaner = Cleaner::new(Settings { max_line_chars: 0, ..Settings::default() });
    let long: String = (0..2_000_000).map(|number| format!("{number} \r\n")).collect();
    assert!(matches!(cleaner.clean(&long, &mut Dropped::default()), Verdict::Keep(_)));
    cleaner.clean("short", &mut Dropped::default());
    let held = cleaner.current.capacity() + cleaner.next.capacity() + cleaner.repeats.capacity_bytes();
    assert!(held <= 3 * KEPT_BYTES, "{held} bytes");
}

#[test]
fn settings_read_back_as_written() {
    let settings = Settings { max_symbols: 0.25, ..Settings::default() };
    let written = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&written).unwrap(), settings);
    for wrong in [written.replace("max_symbols", "max_symbol"), written.replace("\"filter\":true,", "")] {
        assert!(serde_json::from_str::<Settings>(&wrong).is_err());
    }
}
