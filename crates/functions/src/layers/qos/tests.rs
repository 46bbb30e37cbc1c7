use super::super::bench::{BLOCK, Bench};
use super::bucket::COMMAND;
use super::*;
use sluice_options::Size;

const SECOND: u64 = 1_000_000_000;

fn limits(iops: u64) -> QosLimits {
    QosLimits { iops: Some(iops), ..QosLimits::default() }
}

fn member(limits: QosLimits) -> Arc<Member> {
    let options = QosOptions { limits, ..QosOptions::default() };
    Groups::default().member_at(&options, 0).expect("no group is named")
}

fn bench(member: &Arc<Member>) -> Bench {
    Bench::new(Qos::new(Arc::clone(member), 64), Status::SUCCESS)
}

/// Returns the time of the next command that passes.
fn next_pass(bench: &mut Bench) -> u64 {
    while bench.expire().is_empty() {}
    bench.now_ns
}

#[test]
fn one_command_a_second_is_exactly_one() {
    let mut bench = bench(&member(limits(1)));
    assert_eq!(bench.read(0).len(), 1, "the first passes at once");
    for number in 1..=10 {
        assert_eq!(bench.read(number * u64::from(BLOCK)).len(), 0);
    }
    let times: Vec<u64> = (0..10).map(|_| next_pass(&mut bench)).collect();
    assert_eq!(times, (1..=10).map(|second| second * SECOND).collect::<Vec<_>>());
    let order: Vec<u64> = (0..=10).map(|number| number * u64::from(BLOCK)).collect();
    assert_eq!(bench.reached(), order);
}

#[test]
fn without_limits_everything_passes_and_no_timer_runs() {
    let mut bench = bench(&member(QosLimits::default()));
    for _ in 0..100 {
        assert_eq!(bench.read(0).len(), 1);
    }
    assert_eq!(bench.stack.deadline_ns(), None);
}

#[test]
fn reads_wait_behind_no_write() {
    let only_writes = QosLimits { write_iops: Some(1), ..QosLimits::default() };
    let mut bench = bench(&member(only_writes));
    assert_eq!(bench.write(0, 512).len(), 1);
    assert_eq!(bench.write(0, 512).len(), 0);
    assert_eq!(bench.submit(Operation::Deallocate, 0, 512).len(), 0, "it counts as a write");
    assert_eq!(bench.read(0).len(), 1);
    assert_eq!(bench.submit(Operation::Flush, 0, 0).len(), 1, "a flush covers finished writes alone");
    assert_eq!(next_pass(&mut bench), SECOND);
    assert_eq!(next_pass(&mut bench), 2 * SECOND);
}

#[test]
fn bytes_are_paid_after_the_command_has_passed() {
    let bytes = QosLimits { bandwidth: Some(Size(4096)), ..QosLimits::default() };
    let mut bench = bench(&member(bytes));
    assert_eq!(bench.write(0, 8192).len(), 1);
    assert_eq!(bench.read(0).len(), 0, "both classes share the limit");
    assert_eq!(bench.submit(Operation::WriteZeroes, 0, 4096).len(), 0, "its bytes count");
    assert_eq!(bench.submit(Operation::Deallocate, 0, 8192).len(), 0, "it waits behind the other");
    assert_eq!(next_pass(&mut bench), 2 * SECOND);
    assert_eq!(next_pass(&mut bench), 2 * SECOND + SECOND / 8);
}

#[test]
fn unused_time_is_saved_up_to_the_burst() {
    let burst = QosLimits { burst_ms: Some(100), ..limits(100) };
    let mut bench = bench(&member(burst));
    bench.now_ns = 60 * SECOND;
    let passed = (0..40).filter(|_| !bench.read(0).is_empty()).count();
    assert_eq!(passed, 11, "a tenth of a second, and the command that is paid afterwards");
    assert_eq!(next_pass(&mut bench), 60 * SECOND + SECOND / 100);
}

#[test]
fn credit_that_is_not_used_is_given_back() {
    let groups = Groups::default();
    groups.set_at("all", limits(1_000_000), 0).expect("there is room");
    let options = QosOptions { group: Some("all".to_owned()), ..QosOptions::default() };
    let member = groups.member_at(&options, 0).expect("the group is there");
    let claimed = || {
        member.group.as_ref().expect("a group").next(
            &member.group.as_ref().expect("a group").read().expect("nobody writes"),
            READ,
            0,
        )[2]
    };
    let mut bench = bench(&member);
    bench.now_ns = SECOND;
    assert_eq!(bench.read(0).len(), 1);
    assert_eq!(claimed(), (990_000 + 2500) * COMMAND, "a quarter of the burst");
    bench.expire();
    assert_eq!(bench.now_ns, SECOND + LAPSE_NS);
    assert_eq!(claimed(), (990_000 + 1) * COMMAND);
    assert_eq!(bench.stack.deadline_ns(), None);
}

#[test]
fn a_new_limit_applies_to_commands_that_wait() {
    let member = member(limits(1));
    let control = Member::control(Arc::clone(&member));
    let mut bench = bench(&member);
    for _ in 0..4 {
        bench.read(0);
    }
    assert_eq!(control.waits(), QosWaits { waiting: 3, total: 3 });
    control.set_at(limits(10), 0);
    assert_eq!(next_pass(&mut bench), SECOND / 10);
    assert_eq!(next_pass(&mut bench), SECOND / 5);
    control.set_at(QosLimits::default(), bench.now_ns);
    assert!(next_pass(&mut bench) <= SECOND / 5 + LOOK_NS);
    assert_eq!(control.waits(), QosWaits { waiting: 0, total: 3 });
    assert_eq!(control.limits(), QosLimits::default());
    control.set_at(limits(1), bench.now_ns);
    assert_eq!(bench.read(0).len(), 1);
    assert_eq!(bench.read(0).len(), 0, "credit without a limit has ended");
}

#[test]
fn waiting_commands_are_aborted_and_their_turn_is_free() {
    let member = member(limits(1));
    let mut bench = bench(&member);
    for _ in 0..4 {
        bench.read(0);
    }
    let one = |cid| Aborted { cid: Some(cid), ..Aborted::of(Controllers::of_bits(1)) };
    assert_eq!(bench.abort(one(1)), [(1, Status::ABORT_REQUESTED)]);
    assert_eq!(bench.abort(one(3)), [(3, Status::ABORT_REQUESTED)]);
    assert_eq!(next_pass(&mut bench), SECOND);
    assert_eq!(member.waiting.load(Ordering::Relaxed), 0);
    bench.read(0);
    bench.stack.end_waiting(Controllers::of_bits(1), Status::INTERNAL_ERROR, &mut bench.slab, SECOND);
    let mut done = Vec::new();
    bench.stack.run_completions(&mut bench.slab, SECOND, &mut done);
    assert_eq!(done.len(), 1);
    done.into_iter().for_each(|command| bench.slab.release(command));
    assert_eq!(bench.stack.deadline_ns(), None);
}

#[test]
fn a_layer_that_leaves_forwards_what_waits() {
    let member = member(limits(1));
    let mut bench = bench(&member);
    for number in 0..3 {
        bench.read(number * 512);
    }
    bench.stack.take_out(0, &mut bench.slab, 0).expect("it only waits");
    let mut done = Vec::new();
    bench.stack.run_completions(&mut bench.slab, 0, &mut done);
    assert_eq!(done.len(), 2);
    done.into_iter().for_each(|command| bench.slab.release(command));
    assert_eq!(bench.reached(), [0, 512, 1024]);
}

#[test]
fn a_group_is_refused_less_than_its_members_are_guaranteed() {
    let groups = Groups::default();
    groups.set_at("all", limits(100), 0).expect("there is room");
    let of = |guarantee| QosOptions {
        group: Some("all".to_owned()),
        guarantee: Some(limits(guarantee)),
        ..QosOptions::default()
    };
    let _first = groups.member_at(&of(60), 0).expect("60 of 100");
    assert!(groups.member_at(&of(41), 0).is_err());
    let second = groups.member_at(&of(40), 0).expect("100 of 100");
    assert_eq!(groups.set_at("all", limits(99), 0), Err(GroupRefused::Guaranteed("iops", 100)));
    assert_eq!(groups.remove("all"), Err(GroupRefused::InUse(2)));
    drop(second);
    groups.set_at("all", limits(60), 0).expect("the second is closed");
    assert_eq!(groups.list()[0].members, 1);
    let other = QosOptions { group: Some("al".to_owned()), ..QosOptions::default() };
    let fault = groups.member_at(&other, 0).expect_err("there is none");
    assert!(format!("{fault:?}").contains("did you mean `all`?"), "{fault:?}");
    assert_eq!(groups.remove("none"), Err(GroupRefused::Unknown));
}
