//! Files of the host's memory that the device sees, and at which addresses.
//!
//! A file is shown when a command first has data in it; until then, and if the device refuses, data is
//! copied. It is taken back when the host has unmapped the last region of it, or is gone, and no command
//! on the device names it any more.

use super::window::Window;
use sluice_command::{Controllers, Origin};
use sluice_memory::{MemoryFile, Removed, Segment, Space};

/// Files shown at once; a guest has one for each memory device. What is beyond is copied.
pub(super) const LOANS_MAX: usize = 32;

/// A set of loans, by their number.
pub(super) type LoanSet = u32;

const _: () = assert!(LOANS_MAX <= LoanSet::BITS as usize);

/// Where a loan is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The keeper was asked to show it.
    Asked,
    Seen,
    /// The device does not want it.
    Refused,
    /// To be taken back, as soon as no command names it and the keeper has answered.
    Leaving {
        asked: bool,
    },
    /// The keeper was asked to take it back.
    Returning,
    /// The device does not see it, and it is not wanted here either.
    Useless,
}

#[derive(Debug)]
struct Loan {
    /// Where it begins in this process, and how long it is, in bytes.
    address: usize,
    bytes: usize,
    iova: u64,
    stage: Stage,
    /// Commands on the device that name it.
    uses: u32,
    /// A region of it was unmapped since the last review.
    doubtful: bool,
    file: MemoryFile,
    /// The controller whose host has it.
    of: u8,
}

/// What the keeper is to do.
#[derive(Debug)]
pub(super) enum Errand {
    Lend {
        loan: usize,
        file: MemoryFile,
        iova: u64,
    },
    TakeBack {
        loan: usize,
        bytes: u64,
        iova: u64,
    },
    /// Letting go of it may take time.
    Discard(MemoryFile),
}

/// The loans of one target.
#[derive(Debug)]
pub(super) struct Loans {
    window: Window,
    table: [Option<Loan>; LOANS_MAX],
    /// The loan found last, which is nearly always the one found next.
    recent: usize,
    /// A segment of which no loan is known, and the controller whose host's it is.
    missed: Option<(u8, Segment)>,
    /// By controller: the generation of its host's space at the last review.
    generations: [u64; Controllers::MAX],
    /// Some loan may have a next step.
    unsettled: bool,
}

impl Loans {
    pub(super) fn new(window: Window) -> Self {
        let table = [const { None }; LOANS_MAX];
        Self { window, table, recent: 0, missed: None, generations: [0; Controllers::MAX], unsettled: false }
    }

    /// The address of a segment for the device, and the loan it is in. None if the device does not see it. `of` is
    /// the controller that its command came through.
    #[inline]
    pub(super) fn find(&mut self, segment: &Segment, of: u8) -> Option<(u64, usize)> {
        match self.look_in(self.recent, segment) {
            Some(iova) => Some((iova, self.recent)),
            None => self.search(segment, of),
        }
    }

    #[inline]
    fn look_in(&self, loan: usize, segment: &Segment) -> Option<u64> {
        let loan = self.table[loan].as_ref().filter(|loan| loan.stage == Stage::Seen)?;
        let offset = segment.pointer().addr().wrapping_sub(loan.address);
        let fits = offset < loan.bytes && segment.len() as usize <= loan.bytes - offset;
        (fits && !segment.is_bit_bucket()).then(|| loan.iova + offset as u64)
    }

    #[cold]
    fn search(&mut self, segment: &Segment, of: u8) -> Option<(u64, usize)> {
        for loan in 0..LOANS_MAX {
            if let Some(iova) = self.look_in(loan, segment) {
                self.recent = loan;
                return Some((iova, loan));
            }
        }
        let known = self.table.iter().flatten().any(|loan| loan.file.contains(segment));
        if !known && !segment.is_bit_bucket() && of != Origin::SUBSYSTEM {
            self.missed = Some((of, *segment));
            self.unsettled = true;
        }
        None
    }

    /// A command that names these loans is about to be submitted.
    #[inline]
    pub(super) fn begin(&mut self, set: LoanSet) {
        each(set, |loan| self.uses(loan, 1));
    }

    /// The device is done with such a command.
    #[inline]
    pub(super) fn end(&mut self, set: LoanSet) {
        each(set, |loan| self.uses(loan, -1));
    }

    #[inline]
    fn uses(&mut self, loan: usize, change: i32) {
        let Some(loan) = &mut self.table[loan] else { return };
        loan.uses = loan.uses.checked_add_signed(change).expect("as many ends as beginnings");
        self.unsettled |= loan.stage != Stage::Seen;
    }

    /// The host took memory back: what is a file's is looked at with the next errand.
    pub(super) fn forget(&mut self, removed: &Removed) {
        for loan in self.table.iter_mut().flatten().filter(|loan| removed.holds(&loan.file)) {
            loan.doubtful = true;
            self.unsettled = true;
        }
    }

    /// True while the device sees a file of removed memory that is on its way back, or may have to be.
    pub(super) fn still_maps(&self, removed: &Removed) -> bool {
        let leaves =
            |loan: &Loan| loan.doubtful || matches!(loan.stage, Stage::Leaving { .. } | Stage::Returning);
        self.table.iter().flatten().any(|loan| leaves(loan) && removed.holds(&loan.file))
    }

    /// All of a controller's host are to be taken back.
    pub(super) fn revoke(&mut self, controller: u8) {
        self.table.iter_mut().flatten().filter(|loan| loan.of == controller).for_each(Loan::leave);
        self.missed.take_if(|(of, _)| *of == controller);
        self.unsettled = true;
    }

    pub(super) fn has_some_of(&self, controller: u8) -> bool {
        self.table.iter().flatten().any(|loan| loan.of == controller)
    }

    /// What the keeper answered to [`Errand::Lend`].
    pub(super) fn lent(&mut self, loan: usize, seen: bool) {
        let Some(loan) = self.table.get_mut(loan).and_then(Option::as_mut) else { return };
        loan.stage = match (loan.stage, seen) {
            (Stage::Asked, true) => Stage::Seen,
            (Stage::Asked, false) => Stage::Refused,
            (Stage::Leaving { .. }, true) => Stage::Leaving { asked: false },
            // It is not there to be taken back.
            (Stage::Leaving { .. }, false) => Stage::Useless,
            (other, _) => other,
        };
        self.unsettled = true;
    }

    /// What the keeper answered to [`Errand::TakeBack`].
    pub(super) fn returned(&mut self, loan: usize) -> Option<MemoryFile> {
        self.table.get_mut(loan)?.take().map(|loan| loan.file)
    }

    /// The device is gone, and with it all loans. Their files, for whoever has the time to let go.
    pub(super) fn drop_all(&mut self) -> Vec<MemoryFile> {
        self.missed = None;
        self.table.iter_mut().filter_map(Option::take).map(|loan| loan.file).collect()
    }

    /// Calls `run` with everything the keeper is to do now, as far as that can be told in a turn of this controller,
    /// whose host has this memory. `connected` says if there is a device to show more memory to.
    pub(super) fn errands(
        &mut self,
        controller: u8,
        space: &Space,
        connected: bool,
        mut run: impl FnMut(Errand),
    ) {
        let known = self.generations.get_mut(usize::from(controller));
        let is_new =
            known.is_some_and(|known| std::mem::replace(known, space.generation()) != space.generation());
        if !self.unsettled && !is_new {
            return;
        }
        for index in 0..LOANS_MAX {
            self.review(index, controller, space, &mut run);
        }
        if let Some((_, segment)) = self.missed.take_if(|(of, _)| *of == controller)
            && connected
        {
            self.ask(&segment, controller, space, &mut run);
        }
        // What is left is for the turns of other controllers.
        self.unsettled = self.missed.is_some() || self.table.iter().flatten().any(|loan| loan.doubtful);
    }

    fn review(&mut self, index: usize, controller: u8, space: &Space, run: &mut impl FnMut(Errand)) {
        let Some(loan) = &mut self.table[index] else { return };
        if loan.of == controller && std::mem::take(&mut loan.doubtful) && !space.holds(&loan.file) {
            loan.leave();
        }
        match loan.stage {
            Stage::Leaving { asked: false } if loan.uses == 0 => {
                loan.stage = Stage::Returning;
                run(Errand::TakeBack { loan: index, bytes: loan.bytes as u64, iova: loan.iova });
            }
            Stage::Useless => {
                if let Some(loan) = self.table[index].take() {
                    run(Errand::Discard(loan.file));
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, segment: &Segment, controller: u8, space: &Space, run: &mut impl FnMut(Errand)) {
        let Some(free) = self.table.iter().position(Option::is_none) else { return };
        let Some(file) = space.file_of(segment) else { return };
        // A region that is gone by now is no reason to show its file.
        if !space.holds(&file) {
            return run(Errand::Discard(file));
        }
        // One that was refused has no place.
        let lent = self.table.iter().flatten().filter(|loan| loan.bytes > 0);
        let taken = lent.map(|loan| loan.iova..loan.iova + loan.bytes as u64);
        let place = self.window.place(file.len(), taken);
        self.table[free] = Some(Loan {
            address: file.address(),
            bytes: if place.is_some() { file.len() as usize } else { 0 },
            iova: place.unwrap_or(self.window.own()),
            // Noted even so, lest every command ask again.
            stage: if place.is_some() { Stage::Asked } else { Stage::Refused },
            uses: 0,
            doubtful: false,
            file: file.clone(),
            of: controller,
        });
        if let Some(iova) = place {
            run(Errand::Lend { loan: free, file, iova });
        }
    }
}

impl Loan {
    fn leave(&mut self) {
        self.stage = match self.stage {
            Stage::Asked => Stage::Leaving { asked: true },
            Stage::Seen => Stage::Leaving { asked: false },
            Stage::Refused => Stage::Useless,
            other => other,
        };
    }
}

/// The set of one loan.
#[inline]
pub(super) fn only(loan: usize) -> LoanSet {
    1 << loan
}

#[inline]
fn each(mut set: LoanSet, mut run: impl FnMut(usize)) {
    while set != 0 {
        run(set.trailing_zeros() as usize);
        set &= set - 1;
    }
}
