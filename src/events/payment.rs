//! Statements of what a user is owed.

use schemars::JsonSchema;
use serde::Serialize;

use super::row::Transition;
use super::value::{Amount, Date, schema_of, to_json};
use super::{Derived, Fact, Facts, Halt, Rule, Verdict};
use crate::domain::change::Change;
use crate::domain::event::{EventKind, UserId};
use crate::domain::table::{Table, payment};

const READY: &str = "ready";
const DEFAULT_CURRENCY: &str = "USD";

pub(super) static STATEMENT_READY: Rule = Rule {
    kind: EventKind::PaymentStatementReady,
    description: "A payment statement has been drawn up and can be viewed.",
    requires_addon: None,
    table: Table::Payment,
    derive: statement_ready,
    schema: schema_of::<StatementReady>,
    example: || {
        to_json(&StatementReady {
            payment_request_id: 7_731,
            invoice_number: "INV-2026-00731".into(),
            period: Date::parse("2026-03-31"),
            amount: Amount::parse("120.50").expect("a constant number"),
            total_due_usd: Amount::parse("131.27").expect("a constant number"),
            currency: "EUR".into(),
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct StatementReady {
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
    /// ISO 4217 code; USD where the platform names none.
    currency: String,
}

fn statement_ready(change: &Change, _: &dyn Facts) -> Fact<Verdict> {
    let Some(row) = Transition::to(change, payment::status, READY) else { return Ok(Verdict::Nothing) };
    let owner = row.optional(payment::user_id)?.ok_or(Halt::Unrouted("payment_without_user"))?;
    let currency = row.optional(payment::currency)?.map(str::trim).filter(|code| !code.is_empty());
    let data = StatementReady {
        payment_request_id: row.integer(payment::id)?,
        invoice_number: row.required(payment::invoice_number)?.to_owned(),
        period: row.optional_date(payment::period_end)?,
        amount: row.amount(payment::amount)?,
        total_due_usd: row.amount(payment::total_due_usd)?,
        currency: currency.unwrap_or(DEFAULT_CURRENCY).to_owned(),
    };
    Ok(Verdict::Raise(Derived::new(UserId(owner.into()), &data)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeFacts, insert, moved, tuple, user, with};
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
    fn a_statement_is_ready_once_with_all_its_digits() {
        let expected = r#"{"payment_request_id":900,"invoice_number":"INV-900","period":"2026-03-31","amount":120.50,"total_due_usd":12345678901234.00,"currency":"EUR"}"#;
        for change in [
            insert(TABLE, payment()),
            moved(TABLE, &payment(), "status", Some("draft")),
            moved(TABLE, &payment(), "status", None),
        ] {
            let facts = FakeFacts::default();
            let derived = facts.raised(KIND, &change);
            assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
            assert_eq!(derived.data, expected);
            assert_eq!(facts.lookups(), 0);
        }
    }

    #[test]
    fn a_statement_that_is_not_ready_or_was_already_raises_nothing() {
        let facts = FakeFacts::default();
        let paid = with(TABLE, &payment(), "status", Some("paid"));
        for change in [
            insert(TABLE, paid.clone()),
            moved(TABLE, &paid, "status", Some("ready")),
            moved(TABLE, &payment(), "amount", Some("1.00")),
        ] {
            assert_eq!(facts.derive(KIND, &change), Ok(Verdict::Nothing), "{change:?}");
        }
    }

    #[test]
    fn the_currency_is_trimmed_and_defaults_to_dollars() {
        for (currency, expected) in [(None, "USD"), (Some("GBP "), "GBP"), (Some("   "), "USD")] {
            let change = insert(TABLE, with(TABLE, &payment(), "currency", currency));
            let data = FakeFacts::default().raised(KIND, &change).data;
            assert!(data.ends_with(&format!(r#","currency":"{expected}"}}"#)), "{data}");
        }
    }

    #[test]
    fn the_period_may_be_null() {
        let change = insert(TABLE, with(TABLE, &payment(), "period_end", None));
        assert!(FakeFacts::default().raised(KIND, &change).data.contains(r#""period":null,"#));
    }

    #[test]
    fn a_payment_to_nobody_is_unrouted_and_what_json_does_not_have_malformed() {
        let derive =
            |column, value| FakeFacts::default().derive(KIND, &insert(TABLE, with(TABLE, &payment(), column, value)));
        assert_eq!(derive("user_id", None), Err(Halt::Unrouted("payment_without_user")));
        for (column, value) in [
            ("id", Some("x")),
            ("invoice_number", None),
            ("period_end", Some("infinity")),
            ("amount", None),
            ("amount", Some("NaN")),
            ("total_due_usd", Some("-Infinity")),
        ] {
            assert!(matches!(derive(column, value), Err(Halt::Malformed(_))), "{column}: {value:?}");
        }
    }
}
