//! The field reader against serde_json.

use super::super::json::*;
use proptest::prelude::*;
use serde_json::Value;

/// Reads `line` in pieces of at most `step` characters.
fn read(line: &str, field: &str, step: usize) -> Result<Option<(String, u64)>, FaultKind> {
    let mut reader = FieldReader::new(field);
    let mut out = String::new();
    let mut buffer = [0; 4];
    if step == usize::MAX {
        reader.feed(line, &mut out).map_err(|fault| fault.kind)?;
    } else {
        for character in line.chars() {
            let fed = reader.feed(character.encode_utf8(&mut buffer), &mut out);
            fed.map_err(|fault| fault.kind)?;
        }
    }
    match reader.finish().map_err(|fault| fault.kind)? {
        Line::Blank => Ok(None),
        Line::Text => Ok(Some((out, reader.lone_surrogates))),
    }
}

fn text(line: &str, field: &str) -> Result<Option<String>, FaultKind> {
    let whole = read(line, field, usize::MAX);
    assert_eq!(whole, read(line, field, 1), "{line}");
    whole.map(|found| found.map(|(text, _)| text))
}

#[test]
fn finds_the_field() {
    let found = |line: &str, field: &str| text(line, field).unwrap().unwrap();
    assert_eq!(found(r#"{"text": "a\n\u00e9\ud83d\ude00b"}"#, "text"), "a\né😀b");
    assert_eq!(found(r#"{"id":1,"x":[{"text":"no"},[]],"text":"yes"}"#, "text"), "yes");
    assert_eq!(found(r#"{"meta":{"text":"in"}}"#, "meta.text"), "in");
    assert_eq!(found(r#"{"meta.text":"flat"}"#, "meta.text"), "flat");
    assert_eq!(found(r#"{"a":{"b.c":"x"}}"#, "a.b.c"), "x");
    assert_eq!(found(r#"{"a":{"b":{"d":1}},"a.b":{"c":"y"}}"#, "a.b.c"), "y");
    assert_eq!(found(r#"{"a":"no","a.b":"yes"}"#, "a.b"), "yes");
    assert_eq!(found(r#"{"t\u0065xt":"escaped key"}"#, "text"), "escaped key");
    assert_eq!(found(r#"{"text":"first","text":"second"}"#, "text"), "second");
    assert_eq!(found(r#"{"text":null,"text":"second"}"#, "text"), "second");
    assert_eq!(found(r#"{"text":"first","text":[1],"text":"third"}"#, "text"), "third");
    assert_eq!(found(r#"{"n":NaN,"m":-Infinity,"text":""}"#, "text"), "");
    assert_eq!(found("\t{\"text\":\"a\"}\r", "text"), "a");
    assert_eq!(text(" \t\r", "text"), Ok(None));
}

#[test]
fn reports_what_is_wrong() {
    assert_eq!(text(r#"{"a":"b"}"#, "text"), Err(FaultKind::Missing));
    assert_eq!(text(r#"{"a":{"text":"b"}}"#, "text"), Err(FaultKind::Missing));
    assert_eq!(text(r#"{"text":null}"#, "text"), Err(FaultKind::NotAString));
    assert_eq!(text(r#"{"text":["a"]}"#, "text"), Err(FaultKind::NotAString));
    assert_eq!(text(r#"{"text":{"text":"a"}}"#, "text"), Err(FaultKind::NotAString));
    assert_eq!(text(r#"{"text":"a","text":null}"#, "text"), Err(FaultKind::NotAString));
    for broken in [
        "[1]",
        "\"text\"",
        "{",
        "{\"text\":\"a\"",
        "{\"text\":\"a\"}}",
        "{\"text\":\"a\",}",
        "{\"text\" \"a\"}",
        "{\"text\":\"\\x\"}",
        "{\"text\":\"\\u12g4\"}",
        "{\"text\":\"a",
        "{\"a\":01,\"text\":\"\"}",
        "{'text':1}",
        "{\"a\":[1,],\"text\":\"\"}",
        "{\"a\":tru,\"text\":\"\"}",
        "{\"text\":\"\u{1}\"}",
        "{\"a\":1.,\"text\":\"\"}",
        "{\"a\":[},\"text\":\"\"}",
        "{\"a\":-,\"text\":\"\"}",
    ] {
        assert!(matches!(text(broken, "text"), Err(FaultKind::Json(_))), "{broken}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(5000));
    assert!(matches!(text(&deep, "text"), Err(FaultKind::Json(_))));
}

#[test]
fn lone_surrogates_are_replaced_and_counted() {
    let line = r#"{"text":"\ud800a\udc00\ud800\ud83d\ude00\ud801"}"#;
    let expected = "\u{FFFD}a\u{FFFD}\u{FFFD}😀\u{FFFD}".to_string();
    assert_eq!(read(line, "text", usize::MAX), Ok(Some((expected.clone(), 4))));
    assert_eq!(read(line, "text", 1), Ok(Some((expected, 4))));
}

#[test]
fn stops_at_the_end_of_the_line() {
    let mut reader = FieldReader::new("t");
    let mut out = String::new();
    let input = "{\"t\":\"a\"}\n{\"t\":\"b\"}\n";
    assert_eq!(reader.feed(input, &mut out), Ok(Fed::LineEnd(10)));
    assert_eq!(reader.finish(), Ok(Line::Text));
    reader.start_line(0);
    assert_eq!(reader.feed(&input[10..], &mut out), Ok(Fed::LineEnd(10)));
    assert_eq!(out, "ab");
    reader.start_line(0);
    let fault = reader.feed("{\"t\":\"x\n", &mut out).unwrap_err();
    assert_eq!((fault.at, fault.column), (7, 8));
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[tb.]{0,3}|text|meta", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_serde(value in values(), pretty in any::<bool>()) {
        let line = if pretty {
            serde_json::to_string_pretty(&value).unwrap().replace('\n', " ")
        } else {
            value.to_string()
        };
        let expected = match &value {
            Value::Object(map) => match map.get("text") {
                Some(Value::String(text)) => Ok(Some(text.clone())),
                Some(_) => Err(FaultKind::NotAString),
                None => Err(FaultKind::Missing),
            },
            _ => Err(FaultKind::Json("not an object")),
        };
        prop_assert_eq!(text(&line, "text"), expected);
    }

    #[test]
    fn accepts_exactly_what_serde_accepts(
        line in r#"\{"text":"a"(,"[ab]":[-+0-9.eE\[\]{},:"tfnrul\\]{0,6}){0,3}[}\]]{1,2}"#,
        byte in any::<prop::sample::Index>(),
        other in prop::sample::select(&b"{}[]:,\"\\0e-. t"[..]),
    ) {
        let mut bytes = line.into_bytes();
        let at = byte.index(bytes.len());
        bytes[at] = other;
        let line = String::from_utf8(bytes).unwrap();
        let ours = text(&line, "text");
        let valid = serde_json::from_str::<Value>(&line).is_ok_and(|value| value.is_object());
        // Only we accept overflowing numbers.
        let overflow = line.contains(['e', 'E']);
        if !overflow {
            prop_assert_eq!(valid, !matches!(ours, Err(FaultKind::Json(_)) | Ok(None)), "{}", line);
        }
    }
}
