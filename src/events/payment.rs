//! Payment statements.

use schemars::JsonSchema;
use serde::Serialize;

use super::row::Transition;
use super::rule::{EventData, Facts, NoEvent, Owner};
use super::value::{Amount, Date};
use crate::domain::change::Change;
use crate::domain::event::{EventKind, UserId};
use crate::domain::table::{Table, payment};

const READY: &str = "ready";
const DEFAULT_CURRENCY: &str = "USD";

#[derive(Serialize, JsonSchema)]
pub(super) struct StatementReady {
    /// The platform's payment request.
    payment_request_id: i64,
    /// The invoice's reference.
    invoice_number: String,
    /// The last day of the period that the statement covers.
    period: Option<Date>,
    /// The statement's amount, in `currency`.
    amount: Amount,
    /// The statement's total, converted to US dollars.
    total_due_usd: Amount,
    /// ISO 4217 code; USD if the platform has none.
    currency: String,
}

impl EventData for StatementReady {
    const KIND: EventKind = EventKind::PaymentStatementReady;
    const DESCRIPTION: &'static str = "A payment statement is ready and can be viewed.";
    const TABLE: Table = Table::Payment;
    const EXAMPLE: &'static str = concat!(
        r#"{"payment_request_id":7731,"invoice_number":"INV-2026-00731","period":"2026-03-31","amount":120.50,"#,
        r#""total_due_usd":131.27,"currency":"EUR"}"#
    );

    fn derive(change: &Change, _: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::to(change, payment::status, READY)?;
        let owner = row
            .text(payment::user_id)?
            .ok_or(NoEvent::Unrouted("payment_without_user"))?;
        let currency = row
            .text(payment::currency)?
            .map(str::trim)
            .filter(|code| !code.is_empty());

        let data = StatementReady {
            payment_request_id: row.required(payment::id)?,
            invoice_number: row.required(payment::invoice_number)?,
            period: row.optional(payment::period_end)?,
            amount: row.required(payment::amount)?,
            total_due_usd: row.required(payment::total_due_usd)?,
            currency: currency.unwrap_or(DEFAULT_CURRENCY).to_owned(),
        };

        Ok((
            Owner {
                user: UserId(owner.into()),
                label: None,
            },
            data,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{FakeFacts, insert, moved, tuple, user, with};
    use super::*;
    use crate::domain::change::Tuple;

    const TABLE: Table = Table::Payment;
    const KIND: EventKind = EventKind::PaymentStatementReady;

    fn payment() -> Tuple {
        let values = [
            ("id", "900"),
            ("user_id", "alice"),
            ("invoice_number", "INV-900"),
            ("period_end", "2026-03-31"),
            ("amount", "120.50"),
            ("total_due_usd", "12345678901234.00"),
            ("currency", "EUR"),
            ("status", "ready"),
        ];
        tuple(TABLE, &values)
    }

    #[test]
    fn a_ready_statement_keeps_all_digits_of_its_amounts() {
        let expected = r#"{"payment_request_id":900,"invoice_number":"INV-900","period":"2026-03-31","amount":120.50,"total_due_usd":12345678901234.00,"currency":"EUR"}"#;

        for change in [
            insert(TABLE, payment()),
            moved(TABLE, &payment(), "status", Some("draft")),
            moved(TABLE, &payment(), "status", None),
        ] {
            let facts = FakeFacts::default();
            let derived = facts.raised(KIND, &change);
            assert_eq!(
                (derived.owner, derived.once_for_release),
                (user("alice"), None)
            );
            assert_eq!(derived.data, expected);
            assert_eq!(facts.lookups(), 0);
        }
    }

    #[test]
    fn a_statement_raises_nothing_before_it_is_ready_and_after() {
        let facts = FakeFacts::default();
        let paid = with(TABLE, &payment(), "status", Some("paid"));
        for change in [
            insert(TABLE, paid.clone()),
            moved(TABLE, &paid, "status", Some("ready")),
            moved(TABLE, &payment(), "amount", Some("1.00")),
        ] {
            assert_eq!(
                facts.derive(KIND, &change),
                Err(NoEvent::NotApplicable),
                "{change:?}"
            );
        }
    }

    #[test]
    fn the_currency_is_trimmed_and_defaults_to_dollars() {
        for (currency, expected) in [(None, "USD"), (Some("GBP "), "GBP"), (Some("   "), "USD")] {
            let change = insert(TABLE, with(TABLE, &payment(), "currency", currency));
            let data = FakeFacts::default().raised(KIND, &change).data;
            assert!(
                data.ends_with(&format!(r#","currency":"{expected}"}}"#)),
                "{data}"
            );
        }
    }

    #[test]
    fn the_period_may_be_null() {
        let change = insert(TABLE, with(TABLE, &payment(), "period_end", None));
        assert!(
            FakeFacts::default()
                .raised(KIND, &change)
                .data
                .contains(r#""period":null,"#)
        );
    }

    #[test]
    fn a_payment_without_user_is_unrouted_and_invalid_values_are_malformed() {
        let derive = |column, value| {
            FakeFacts::default()
                .derive(KIND, &insert(TABLE, with(TABLE, &payment(), column, value)))
        };

        assert_eq!(
            derive("user_id", None),
            Err(NoEvent::Unrouted("payment_without_user"))
        );

        for (column, value) in [
            ("id", Some("x")),
            ("invoice_number", None),
            ("period_end", Some("infinity")),
            ("amount", None),
            ("amount", Some("NaN")),
            ("total_due_usd", Some("-Infinity")),
        ] {
            assert!(
                matches!(derive(column, value), Err(NoEvent::Malformed(_))),
                "{column}: {value:?}"
            );
        }
    }
}
