//! Properties of the scheduler, for any jobs.

use super::{JOBS, Rig, SECOND_NS, pace};
use crate::{Order, PaceChange, Priority, STEP_MAX, State, Verb};
use proptest::prelude::*;

const PLENTY: u64 = 1 << 50;

fn priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks that a job keeps to its rate in every window, and reaches it on a fast device.
    #[test]
    fn a_rate_is_kept_and_reached(mib_s in 1_u32..500, step_us in 50_u64..1000, from in 0_u64..3) {
        let mut rig = Rig::new(step_us * 1000, [PLENTY, 0, 0]);
        rig.jobs.set_pace(0, pace(Some(mib_s), None, Priority::Normal));
        rig.run_until(5 * SECOND_NS);
        let rate = u64::from(mib_s) << 20;
        let (from_ns, to_ns) = (from * SECOND_NS, (from + 2) * SECOND_NS);
        let bytes = rig.bytes_of(0, from_ns, to_ns);
        prop_assert!(bytes <= 2 * rate + 3 * STEP_MAX, "{bytes} of {rate} per second");
        prop_assert!(bytes + 3 * STEP_MAX >= 2 * rate, "{bytes} of {rate} per second");
    }

    /// Checks that steps of a job are in flight for its share of the time.
    #[test]
    fn a_share_is_kept(share in 1_u8..100, step_us in 200_u64..5000) {
        let step_ns = step_us * 1000;
        let mut rig = Rig::new(step_ns, [PLENTY, 0, 0]);
        rig.jobs.set_pace(0, pace(None, Some(share), Priority::Normal));
        rig.run_until(2 * SECOND_NS);
        let busy_ns = rig.ends.len() as u64 * step_ns;
        let due_ns = 2 * SECOND_NS / 100 * u64::from(share);
        prop_assert!(busy_ns <= due_ns + step_ns, "{busy_ns} ns, not {due_ns}");
        prop_assert!(busy_ns + 2 * step_ns + 100_000_000 >= due_ns, "{busy_ns} ns, not {due_ns}");
    }

    /// Checks that jobs get the same device by their priorities, and that none starves.
    #[test]
    fn priorities_divide_what_there_is(first in priority(), second in priority(), third in priority()) {
        let mut rig = Rig::new(1_000_000, [PLENTY; JOBS]);
        let priorities = [first, second, third];
        for (job, priority) in priorities.into_iter().enumerate() {
            rig.jobs.set_pace(job, pace(None, None, priority));
        }
        rig.run_until(4 * SECOND_NS);
        let bytes = [0, 1, 2].map(|job| rig.bytes_of(job, 0, 4 * SECOND_NS));
        let weights = priorities.map(|priority| 16 / priority.cost());
        let (all, weight): (u64, u64) = (bytes.iter().sum(), weights.iter().sum());
        for (got, weight_of) in bytes.into_iter().zip(weights) {
            let due = all / weight * weight_of;
            prop_assert!(got.abs_diff(due) <= 20 * STEP_MAX, "{got} bytes, not {due}");
        }
    }

    /// Checks that a job which begins late catches up on nothing: the others lose its part alone, from then on.
    #[test]
    fn a_late_job_takes_its_part_and_no_more(late_ms in 100_u64..2000) {
        let mut rig = Rig::new(1_000_000, [PLENTY, 0, 0]);
        rig.run_until(late_ms * 1_000_000);
        rig.left[1] = PLENTY;
        let from_ns = rig.now_ns;
        rig.run_until(from_ns + SECOND_NS);
        let bytes = [0, 1].map(|job| rig.bytes_of(job, from_ns, from_ns + SECOND_NS));
        prop_assert!(bytes[0].abs_diff(bytes[1]) <= 3 * STEP_MAX, "{bytes:?}");
    }

    /// Checks that a paused job does nothing, sets no alarm, and goes on with its progress when it is resumed.
    #[test]
    fn a_paused_job_rests(mib_s in prop::option::of(1_u32..100), at_ms in 1_u64..3000) {
        let mut rig = Rig::new(1_000_000, [PLENTY, 0, 0]);
        rig.jobs.set_pace(0, pace(mib_s, None, Priority::Normal));
        rig.run_until(at_ms * 1_000_000);
        rig.jobs.pause(0);
        rig.run_until(rig.now_ns + SECOND_NS / 100);
        let (done, ends) = (rig.jobs.done(0), rig.ends.len());
        rig.run_until(rig.now_ns + 100 * SECOND_NS);
        prop_assert_eq!((rig.jobs.done(0), rig.ends.len(), rig.alarm_ns()), (done, ends, None));
        rig.jobs.resume(0);
        rig.run_until(rig.now_ns + 2 * SECOND_NS);
        prop_assert!(rig.jobs.done(0) > done && rig.jobs.state(0) == State::Running);
        let most = u64::from(mib_s.unwrap_or(u32::MAX >> 1)) << 20;
        prop_assert!(rig.jobs.done(0) - done <= 2 * most + 3 * STEP_MAX, "no burst for the pause");
    }

    /// Checks that there is no alarm without work, with any limits.
    #[test]
    fn without_work_there_is_no_timer(mib_s in prop::option::of(1_u32..100), share in prop::option::of(1_u8..100)) {
        let mut rig = Rig::new(1_000_000, [3 << 20, 1, 0]);
        rig.jobs.set_pace(0, pace(mib_s, share, Priority::Low));
        prop_assert_eq!(rig.jobs.alarm_ns(|_| false), None);
        rig.run_until(1000 * SECOND_NS);
        prop_assert_eq!(rig.alarm_ns(), None);
        prop_assert_eq!([0, 1].map(|job| (rig.jobs.state(job), rig.jobs.done(job))), [(State::Done, 3 << 20), (State::Done, 1)]);
        prop_assert_eq!(rig.jobs.state(2), State::Idle);
    }

    /// Checks that a new pace counts from the moment of the change.
    #[test]
    fn a_change_of_pace_counts_at_once(before in 1_u32..4, after in 50_u32..500) {
        let mut rig = Rig::new(100_000, [PLENTY, 0, 0]);
        rig.jobs.set_pace(0, pace(Some(before), None, Priority::Normal));
        rig.run_until(SECOND_NS);
        let change = PaceChange { mib_s: Some(after), ..PaceChange::default() };
        rig.jobs.change_pace(0, change, rig.now_ns);
        rig.run_until(2 * SECOND_NS);
        let bytes = rig.bytes_of(0, SECOND_NS, 2 * SECOND_NS);
        prop_assert!(bytes + 4 * STEP_MAX >= u64::from(after) << 20, "{bytes}");
    }

    /// Checks that the text of an order is read as the same order, and that other texts cause no panic.
    #[test]
    fn orders_are_read_as_they_are_written(
        name in "[a-z][a-z-]{0,20}", mib_s in any::<u32>(), share in 1_u8..=100, which in 0_usize..5, noise in ".{0,40}"
    ) {
        let change = PaceChange { mib_s: Some(mib_s), share: Some(share), priority: Some(Priority::Low) };
        let order = match which {
            0 => Order::List,
            1 => Order::new(Verb::Pause, &name),
            2 => Order::new(Verb::Resume, &name),
            3 => Order::new(Verb::Cancel, &name),
            _ => Order::Do(Verb::Pace, name, change),
        };
        prop_assert_eq!(Order::parse(&order.text()), Some(Ok(order)));
        let _ = (Order::parse(&noise), Order::parse(&format!("job {noise}")));
    }
}

#[test]
fn a_wrong_order_is_refused_in_words() {
    for (text, words) in [
        ("job", "the orders for jobs are"),
        ("job stop resync", "the orders for jobs are"),
        ("job pause", "the orders for jobs are"),
        ("job pause resync now", "`now` does not belong to `pause resync`"),
        ("job pace resync", "a pace needs a limit"),
        ("job pace resync fast", "`fast` is no limit"),
        ("job pace resync share=0", "`share=0` is no limit"),
        ("job pace resync share=101", "`share=101` is no limit"),
        ("job pace resync mib_s=-1", "`mib_s=-1` is no limit"),
        ("job pace resync priority=urgent", "`priority=urgent` is no limit"),
    ] {
        let Some(Err(why)) = Order::parse(text) else { panic!("{text} is accepted") };
        assert!(why.contains(words), "{text}: {why}");
    }
    for other in ["", "status", "resync", "jobs now", "jobless"] {
        assert_eq!(Order::parse(other), None, "{other}");
    }
}

#[test]
fn an_order_fits_the_state_of_its_job() {
    let mut rig = Rig::new(1_000_000, [PLENTY, 0, 0]);
    let names = ["resync", "check", "other"];
    let none = PaceChange::default();
    let execute = |rig: &mut Rig, verb, name: &str| rig.jobs.execute(verb, name, none, &names, rig.now_ns);
    assert_eq!(execute(&mut rig, Verb::Pause, "resync"), Err("the job resync does not run".to_owned()));
    let unknown = execute(&mut rig, Verb::Pause, "sync").expect_err("there is none");
    assert_eq!(unknown, "there is no job `sync`; the jobs are resync, check, other");
    rig.run_until(SECOND_NS);
    assert_eq!(execute(&mut rig, Verb::Pause, "resync"), Ok((0, None)));
    assert_eq!(
        rig.jobs.report(0, "resync", 7, String::new()).accepts,
        [Verb::Resume, Verb::Cancel, Verb::Pace]
    );
    assert_eq!(execute(&mut rig, Verb::Resume, "resync"), Ok((0, None)));
    assert_eq!(execute(&mut rig, Verb::Cancel, "resync"), Ok((0, Some(Verb::Cancel))));
    rig.jobs.cancel(0);
    assert_eq!(execute(&mut rig, Verb::Cancel, "resync"), Err("the job resync is cancelled".to_owned()));
    assert_eq!(execute(&mut rig, Verb::Resume, "resync"), Ok((0, Some(Verb::Resume))));
    let report = rig.jobs.report(0, "resync", 7, String::new());
    assert_eq!((report.total, report.bytes_s), (report.done + 7, 0));
    let text = serde_json::to_string(&report).expect("JSON");
    assert_eq!(serde_json::from_str::<crate::Report>(&text).expect("a report"), report);
}
