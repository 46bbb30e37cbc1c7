use super::*;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A writer that stores the messages.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("unpoisoned").clone()).expect("text")
    }
}

fn levels(text: &str) -> Targets {
    text.parse().expect("levels")
}

#[test]
fn text_has_level_words_and_fields() {
    let kept = Kept::default();
    let sink = kept.clone();
    tracing::subscriber::with_default(text(move || sink.clone(), levels("info")), || {
        tracing::warn!(target: "sluice_control::drives", drive = "demo", "it is slow");
        tracing::debug!(target: "sluice_control::drives", "not shown");
    });
    let text = kept.text();
    assert!(text.contains("WARN sluice_control::drives: it is slow drive=\"demo\"\n"), "{text}");
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn what_a_guest_repeats_is_cut_short() {
    let kept = Kept::default();
    let sink = kept.clone();
    tracing::subscriber::with_default(json(move || sink.clone(), levels("info")), || {
        for number in 0..1000 {
            tracing::warn!(target: "sluice_frontend", number, "a bad doorbell");
        }
        tracing::warn!(target: "sluice_frontend", "another matter");
    });
    let text = kept.text();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    assert_eq!(lines.len(), limit::BURST as usize + 1);
    assert_eq!(lines[3]["number"], 3);
    assert_eq!(lines[limit::BURST as usize]["message"], "another matter");
}

#[test]
fn levels_that_are_none_are_refused() {
    let problem = start(Format::Text, "sluice=loud").expect_err("no such level");
    assert!(problem.error.starts_with("SLUICE_LOG is not a list of levels"), "{problem}");
}
