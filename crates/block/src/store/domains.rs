//! The limits of domains of a served store.

use onefold_core::Result;

use super::Store;
use crate::{
    DomainLimits, check_domain_limits, domain_called, domain_limits_durable, set_domain_limits,
};

impl Store {
    /// Fails unless a domain that is about to be made may have these limits.
    ///
    /// # Errors
    /// As [`check_domain_limits`]; `NoSpace` too when the store stays full.
    pub fn check_domain(&self, limits: DomainLimits) -> Result<()> {
        self.changes().make(|| check_domain_limits(&self.engine, limits))
    }

    /// Gives a domain other limits: `change` gets those that it has. They are in force at once, and
    /// durable on return.
    ///
    /// # Errors
    /// As [`set_domain_limits`]; `NoSpace` too when the store stays full; `Stopped`, `Io`.
    pub fn set_domain(
        &self,
        name: &str,
        change: impl Fn(DomainLimits) -> DomainLimits,
    ) -> Result<DomainLimits> {
        let number = domain_called(&self.engine, name)?;
        let before = self.engine.kernel.state.lock().domains.limits(number);
        let limits = change(before);
        let wanted = self.changes().make(|| set_domain_limits(&self.engine, number, limits))?;
        while domain_limits_durable(&self.engine) < wanted {
            let seen = self.commit.progress();
            self.engine.checkpoint()?;
            self.commit.advance();
            if domain_limits_durable(&self.engine) < wanted {
                // A checkpoint is under way, and waits for a reader; or deleted maps go first.
                self.commit.wait_for_progress(seen + 1, super::ROOM_WAIT);
            }
        }
        Ok(limits)
    }
}
