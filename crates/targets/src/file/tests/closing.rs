//! Targets that go while the kernel has their flush.

use super::*;

/// Checks that the flush of a drive that closes does not count as failed for the others of its file.
#[test]
fn a_drive_that_closes_during_its_flush_leaves_the_others_theirs() {
    let folder = Folder::on_disk();
    let first = open(&folder.config("pool", MIB));
    let control = first.control();
    let other = Drive::new(control.open_part(512, MIB).expect("it opens"));
    let first = Drive::new(first);
    for round in 0..20 {
        let part = Drive::new(control.open_part(512, MIB).expect("it opens"));
        assert_eq!(other.run(write(0, 4096), one(0, 4096)), Status::SUCCESS);
        let task = part.task;
        let run = move |local: &mut sluice_reactor::Local| {
            let now_ns = local.now_ns();
            let host = local.task_mut::<Host>(task).expect("the host is there");
            host.submit(0, Request { operation: Operation::Flush, ..Request::default() }, &[], now_ns);
            local.remove(task).is_none()
        };
        assert!(part.reactor.call(run).expect("an answer"), "the kernel has the flush");
        assert_eq!(other.flush(), Status::SUCCESS, "round {round}");
        part.stop();
    }
    assert!(!control.has_lost() && first.flush() == Status::SUCCESS);
    [first, other].into_iter().for_each(Drive::stop);
}
