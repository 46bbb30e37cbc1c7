//! Tests of the order of steps: reads, repeated writes, and zeros over headers.

use super::*;

/// Returns a flushed format whose log takes several reads.
fn long() -> Kind {
    let kind = flushed();
    Kind { halves: Halves { blocks: 60, ..kind.halves }, ..kind }
}

/// Loads a disk. Returns its steps behind the headers, each with whether it writes records again.
fn steps(disk: &[u8], kind: Kind) -> Vec<(Step, bool)> {
    let (mut loader, mut reader) = (Loader::new(kind.halves, kind.reading), Reader::default());
    let mut found = Vec::new();
    while loader.step() != Step::Done {
        found.push((loader.step(), loader.rewrites()));
        let bytes = match loader.step() {
            Step::Read { at, length } => &disk[at as usize..][..length],
            _ => &[],
        };
        loader.done(bytes, &mut reader).expect("no damage");
    }
    found.split_off(2)
}

/// Compares the steps of loading logs of all lengths. A format that flushes writes each record again, and reads its
/// half to the end; the other one reads to the first block that is no record.
#[test]
fn records_are_written_again_and_a_half_is_read_to_its_end() {
    const IO: u64 = (IO_MAX / BLOCK) as u64;
    for kind in [Kind { halves: long().halves, ..fua() }, long()] {
        let mut run = Run::new(kind, 5);
        let body = body_blocks(&[]) as u64;
        let room = kind.halves.room(body);
        assert!(room > 2 * IO);
        for count in 0..=room {
            let mut wanted = vec![(Step::Read { at: kind.halves.body_at(0, 0), length: BLOCK }, false)];
            let mut first = 0;
            while first < room && (kind.reading.to_end || first <= count) {
                let (at, blocks) = (kind.halves.record_at(0, body, first), IO.min(room - first));
                wanted.push((Step::Read { at, length: blocks as usize * BLOCK }, false));
                let good = count.saturating_sub(first).min(blocks);
                if good > 0 && kind.reading.rewrites {
                    wanted.push((Step::Write { at, length: good as usize * BLOCK }, true));
                }
                first += blocks;
            }
            assert_eq!(steps(&run.disk.durable, kind), wanted, "{count} records");
            if count < room {
                assert!(run.append(true, None));
            }
        }
        assert_eq!(kind.halves.end(), kind.halves.header_at(1) + 60 * BLOCK as u64);
        assert_eq!(kind.halves.end(), run.disk.durable.len() as u64);
    }
}

/// Runs a checkpoint of an empty state up to a step that fails, or to its end. Returns the places of its writes.
fn checkpoint(writer: &mut Writer, fails_at: Option<usize>) -> Vec<u64> {
    let (state, mut buffer, mut places) = (State::new(), vec![0; IO_MAX], Vec::new());
    writer.checkpoint();
    assert!(!writer.is_idle());
    for number in 0.. {
        let step = writer.next(&mut Writing { state: &state, record: 0 }, &mut buffer);
        if let Step::Write { at, .. } = step {
            places.push(at);
        }
        if fails_at == Some(number) {
            writer.failed();
        } else if step != Step::Done {
            continue;
        }
        break;
    }
    assert!(writer.is_idle());
    places
}

/// Fails the header of a checkpoint: zeros are written over it once, before the next body, if the half before it is
/// the fallback.
#[test]
fn a_header_that_may_be_there_is_voided_once() {
    let Kind { halves, rules, .. } = fua();
    let (header, body) = (halves.header_at(0), halves.body_at(0, 0));
    for has_fallback in [true, false] {
        let writer = Writer::new(halves, rules, Position::first(0, 1));
        let mut writer = if has_fallback { writer } else { writer.after_damage() };
        assert_eq!(checkpoint(&mut writer, Some(0)), [body], "the body fails");
        assert_eq!(checkpoint(&mut writer, Some(1)), [body, header], "the header fails");
        if has_fallback {
            assert_eq!(checkpoint(&mut writer, Some(0)), [header], "the zeros fail");
            assert_eq!(
                checkpoint(&mut writer, Some(1)),
                [header, body],
                "there are zeros, and the body fails"
            );
        }
        // The header that is not the fallback is voided last.
        let other = Some(halves.header_at(1)).filter(|_| !has_fallback);
        let places: Vec<u64> = [body, header].into_iter().chain(other).collect();
        assert_eq!(checkpoint(&mut writer, None), places);
        // The half that is written now is the fallback of the next one.
        let (header, body) = (halves.header_at(1), halves.body_at(1, 0));
        assert_eq!(checkpoint(&mut writer, Some(1)), [body, header]);
        assert_eq!(checkpoint(&mut writer, None), [header, body, header]);
    }
}

/// Fails the zeros over the header of before damage: the next checkpoint begins with them, because a reader stops at that
/// header.
#[test]
fn the_header_of_before_damage_is_voided_until_that_succeeds() {
    let Kind { halves, rules, .. } = fua();
    let mut writer = Writer::new(halves, rules, Position::first(0, 1)).after_damage();
    let place = |half| (halves.header_at(half), halves.body_at(half, 0));
    let ((header, body), (broken, broken_body)) = (place(0), place(1));
    assert_eq!(checkpoint(&mut writer, Some(2)), [body, header, broken], "the zeros fail");
    assert!(writer.is_stale());
    assert_eq!(checkpoint(&mut writer, Some(0)), [broken], "they fail again");
    assert_eq!(checkpoint(&mut writer, Some(1)), [broken, broken_body], "the body fails");
    assert_eq!(checkpoint(&mut writer, None), [broken, broken_body, broken]);
    assert_eq!(checkpoint(&mut writer, None), [body, header], "the other half is a fallback");
}

/// Fails the flush behind the zeros: they may not be durable, so they are written again.
#[test]
fn zeros_count_when_they_are_durable() {
    let Kind { halves, .. } = fua();
    let rules = Rules { flushes: true, voids: false };
    let mut writer = Writer::new(halves, rules, Position::first(0, 1));
    let (header, body) = (halves.header_at(0), halves.body_at(0, 0));
    // Body, flush, header, flush.
    assert_eq!(checkpoint(&mut writer, Some(3)), [body, header], "the flush of the header fails");
    assert_eq!(checkpoint(&mut writer, Some(1)), [header], "the flush of the zeros fails");
    assert_eq!(checkpoint(&mut writer, None), [header, body, header]);
    let (header, body) = (halves.header_at(1), halves.body_at(1, 0));
    assert_eq!(checkpoint(&mut writer, None), [body, header]);
}

/// Continues a log behind a body that is longer than the room kept for one: the next record follows the others.
#[test]
fn a_writer_continues_where_the_log_ends() {
    let Kind { halves, rules, .. } = flushed();
    for (body, next) in [(3, 0), (20, 6), (25, 1)] {
        let log = Position { half: 1, generation: 4, next };
        let mut writer = Writer::at(halves, rules, log, body);
        assert!(writer.has_room() && !writer.is_stale() && writer.is_idle());
        writer.append(true);
        let (state, mut buffer) = (State::new(), vec![0; IO_MAX]);
        let mut source = Writing { state: &state, record: 1 };
        assert_eq!(writer.next(&mut source, &mut buffer), Step::Flush);
        let at = halves.record_at(1, body, next);
        assert_eq!(writer.next(&mut source, &mut buffer), Step::Write { at, length: BLOCK });
    }
    let full = Position { half: 1, generation: 4, next: 2 };
    assert!(!Writer::at(halves, rules, full, 25).has_room());
}
