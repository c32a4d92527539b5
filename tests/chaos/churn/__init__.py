"""Churn on one broker: types, subscriptions, filters and owners change while publishers and consumers go on."""
