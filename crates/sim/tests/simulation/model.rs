//! Results that the reference model permits, case by case.

use sluice_sim::{Action, FlightId, ModelNamespace, Tag};

const A: Tag = Tag(0xa);
const B: Tag = Tag(0xb);
const C: Tag = Tag(0xc);

/// Returns a model of one block, with a volatile cache.
fn model() -> ModelNamespace {
    ModelNamespace::new(1, true)
}

fn begin(model: &mut ModelNamespace, tag: Tag, fua: bool) -> FlightId {
    model.begin(Action::Write { first: 0, tags: vec![tag], fua })
}

fn write(model: &mut ModelNamespace, tag: Tag) {
    let id = begin(model, tag, false);
    model.end(id, true);
}

fn flush(model: &mut ModelNamespace) {
    let id = model.begin(Action::Flush);
    model.end(id, true);
}

/// Returns whether a read of the block may return `tag`.
fn shows(model: &mut ModelNamespace, tag: Tag) -> bool {
    let id = model.begin(Action::Read { first: 0, blocks: 1 });
    model.end_read(id, &[Some(tag)]).is_ok()
}

fn candidates(model: &ModelNamespace) -> Vec<Tag> {
    let mut candidates = model.candidates(0);
    candidates.sort();
    candidates
}

#[test]
fn a_finished_write_replaces_what_was_finished_before_it() {
    let mut model = model();
    assert_eq!(candidates(&model), [Tag::ZERO]);
    write(&mut model, A);
    write(&mut model, B);
    assert_eq!(candidates(&model), [B]);
    assert_eq!(model.known(0), Some(B));
    assert!(!shows(&mut model, A));
    assert!(shows(&mut model, B));
}

#[test]
fn writes_in_flight_together_have_no_order_until_a_read_shows_one() {
    let mut model = model();
    let first = begin(&mut model, A, false);
    let second = begin(&mut model, B, false);
    assert_eq!(candidates(&model), [Tag::ZERO, A, B]);
    assert!(shows(&mut model, B), "a write in flight may be seen");
    assert!(shows(&mut model, Tag::ZERO), "and may not");
    model.end(second, true);
    assert_eq!(candidates(&model), [A, B]);
    model.end(first, true);
    assert_eq!(candidates(&model), [A, B]);
    assert_eq!(model.known(0), None);
    assert!(shows(&mut model, A));
    assert_eq!(candidates(&model), [A]);
}

#[test]
fn a_read_may_return_what_was_there_at_any_time_of_it() {
    for (found, allowed) in [(Tag::ZERO, false), (A, true), (B, true), (C, true)] {
        let mut model = model();
        write(&mut model, A);
        let read = model.begin(Action::Read { first: 0, blocks: 1 });
        write(&mut model, B);
        let last = begin(&mut model, C, false);
        assert_eq!(model.end_read(read, &[Some(found)]).is_ok(), allowed, "{found:?}");
        model.end(last, true);
        assert_eq!(candidates(&model), [C], "a read with writes in flight decides nothing");
    }
}

#[test]
fn a_power_cut_may_lose_what_was_not_flushed_and_bring_back_what_was_before() {
    let mut model = model();
    write(&mut model, A);
    flush(&mut model);
    write(&mut model, B);
    write(&mut model, C);
    model.power_cut();
    assert_eq!(candidates(&model), [A, B, C]);
    assert!(shows(&mut model, B));
    assert_eq!(candidates(&model), [B]);
    model.power_cut();
    assert_eq!(candidates(&model), [B], "a second cut changes nothing");
}

#[test]
fn what_a_read_chose_is_what_a_flush_keeps() {
    let mut model = model();
    let first = begin(&mut model, A, false);
    let second = begin(&mut model, B, false);
    model.end(first, true);
    model.end(second, true);
    assert!(shows(&mut model, A));
    flush(&mut model);
    model.power_cut();
    assert_eq!(candidates(&model), [A]);
}

#[test]
fn a_flush_covers_what_was_finished_before_it_began() {
    let mut model = model();
    write(&mut model, A);
    let flush = model.begin(Action::Flush);
    write(&mut model, B);
    model.end(flush, true);
    model.power_cut();
    assert_eq!(candidates(&model), [A, B]);
}

#[test]
fn a_failed_flush_keeps_nothing() {
    let mut model = model();
    write(&mut model, A);
    let flush = model.begin(Action::Flush);
    model.end(flush, false);
    model.power_cut();
    assert_eq!(candidates(&model), [Tag::ZERO, A]);
}

#[test]
fn force_unit_access_keeps_its_own_write() {
    let mut model = model();
    write(&mut model, A);
    let forced = begin(&mut model, B, true);
    model.end(forced, true);
    write(&mut model, C);
    model.power_cut();
    assert_eq!(candidates(&model), [B, C]);
}

#[test]
fn without_a_cache_every_finished_write_is_kept() {
    let mut model = ModelNamespace::new(1, false);
    write(&mut model, A);
    let unfinished = begin(&mut model, B, false);
    model.power_cut();
    assert_eq!(candidates(&model), [A, B]);
    assert!(std::panic::catch_unwind(move || model.end(unfinished, true)).is_err(), "it was cut off");
}

#[test]
fn a_crash_keeps_what_was_finished_and_leaves_the_rest_open() {
    let mut model = model();
    write(&mut model, A);
    write(&mut model, B);
    begin(&mut model, C, false);
    model.crash();
    assert_eq!((candidates(&model), model.in_flight()), (vec![B, C], 0));
}

#[test]
fn what_failed_or_was_deallocated_is_old_or_new() {
    let mut model = model();
    write(&mut model, A);
    let failed = begin(&mut model, B, true);
    model.end(failed, false);
    assert_eq!(candidates(&model), [A, B]);
    let deallocate = model.begin(Action::Deallocate { first: 0, blocks: 1 });
    model.end(deallocate, true);
    assert_eq!(candidates(&model), [Tag::ZERO, A, B]);
    write(&mut model, C);
    assert_eq!(candidates(&model), [C]);
}

#[test]
fn a_compare_reports_equality_as_a_read_would() {
    for (wanted, may_be_equal, may_differ) in [(A, true, true), (B, true, true), (C, false, true)] {
        let mut model = model();
        write(&mut model, A);
        begin(&mut model, B, false);
        let equal = model.begin(Action::Read { first: 0, blocks: 1 });
        let unequal = model.begin(Action::Read { first: 0, blocks: 1 });
        assert_eq!(model.end_read(equal, &[Some(wanted)]).is_ok(), may_be_equal, "{wanted:?}");
        assert_eq!(model.end_unequal(unequal, &[wanted]).is_ok(), may_differ, "{wanted:?}");
    }
    let mut model = model();
    write(&mut model, A);
    let compare = model.begin(Action::Read { first: 0, blocks: 1 });
    assert!(model.end_unequal(compare, &[A]).is_err(), "it is certain what is there");
}

/// Begins the read that shows the write after the Flush. The write ended before the Flush began.
#[test]
fn a_failed_flush_reports_the_loss_of_a_write_that_a_later_read_showed() {
    let mut model = model();
    write(&mut model, A);
    flush(&mut model);
    let failed = begin(&mut model, B, false);
    model.end(failed, false);
    let report = model.begin(Action::Flush);
    assert!(shows(&mut model, B));
    model.lose_unflushed();
    model.end(report, false);
    flush(&mut model);
    assert_eq!(candidates(&model), [A, B]);
}
