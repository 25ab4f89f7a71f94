//! Gives the users whose jobs are due one step each, in turn. No I/O.

use crate::domain::event::UserId;

/// The most users that a round remembers. With more, those that come last may wait for a second
/// step of others.
const MAX_USERS: usize = 1_000;

/// The users who have had a step in this round. Otherwise a user with a hundred jobs would get a
/// hundred steps for one of another user.
#[derive(Debug, Default)]
pub struct Turns {
    served: Vec<UserId>,
}

impl Turns {
    /// The users whose jobs come after those of others.
    pub fn served(&self) -> &[UserId] {
        &self.served
    }

    /// Counts a step. If its user has had one, there is no job of others: a new round begins.
    pub fn count(&mut self, user: &UserId) {
        if self.served.contains(user) || self.served.len() >= MAX_USERS {
            self.served.clear();
        }

        self.served.push(user.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_when_a_user_gets_a_second_step() {
        let user = |name: usize| UserId(name.to_string().into());
        let mut turns = Turns::default();

        for name in [1, 2, 3] {
            turns.count(&user(name));
        }

        assert_eq!(turns.served(), [user(1), user(2), user(3)]);
        turns.count(&user(1));
        assert_eq!(turns.served(), [user(1)]);

        for name in 0..5_000 {
            turns.count(&user(name));
            assert!(turns.served().len() <= MAX_USERS);
        }
    }
}
