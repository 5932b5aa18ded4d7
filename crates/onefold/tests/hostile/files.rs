//! Files of archives and cluster folders, and the locks on them: rules 1, 2, 3 and 16.
