//! Results of background operations: cells that were rebuilt, and rows that were compared.

use super::OpId;
use super::array::{Access, End, Parity};
use super::code::Cells;
use super::plan::Roles;
use super::state::UNSYNCED;
use crate::Members;

impl Parity {
    /// Writes the cells that an operation has rebuilt.
    pub(super) fn write_rebuilt(&mut self, id: OpId) {
        let (geometry, stripe) = (self.geometry(), self.stripe_of(id));
        let targets = self.background.targets();
        let parities = ((1 << geometry.parities) - 1) << geometry.columns();
        let computed: Roles = if targets.covers(UNSYNCED) { parities } else { 0 };
        let is_target = |role: &usize| {
            let member = geometry.member(stripe, *role);
            let is_stale = targets.contains(member) || computed >> role & 1 == 1;
            is_stale && self.member_state.joined.contains(member)
        };
        let cells = (0..geometry.members).filter(is_target).fold(0, |cells, role| cells | 1 << role);
        if cells == 0 {
            return self.finish_op(id, End::Good);
        }
        let op = &mut self.ops.list[id as usize];
        op.cells = cells;
        let regions = self.state.regions_of(&op.rect.rows.clone());
        self.state.touch(regions);
        self.access(id, cells, Access::Write { fua: false });
    }

    /// Notes that a region was rebuilt. Parities that were computed are missing on members that are not there.
    pub(super) fn region_is_rebuilt(&mut self, number: usize, targets: Members) {
        self.state.is_copied(number, targets);
        if targets.covers(UNSYNCED) {
            let absent = self.state.members.without(self.member_state.joined);
            self.state.make_stale(number..number + 1, absent);
        }
        self.member_state.is_well();
    }

    /// Compares all cells of a read's rows. Returns the roles that were wrong, and are right now.
    ///
    /// # Errors
    /// The rows do not belong together, and the wrong cell is unknown.
    pub(super) fn compare_read(&mut self, cells: &mut Cells<'_>) -> Result<Roles, ()> {
        if cells.check() {
            cells.encode();
            return Ok(0);
        }
        self.background.mismatches += 1;
        let Some(role) = cells.blame() else { return Err(()) };
        if role < self.geometry().columns() {
            cells.correct(role);
        }
        cells.encode();
        Ok(1 << role)
    }
}
