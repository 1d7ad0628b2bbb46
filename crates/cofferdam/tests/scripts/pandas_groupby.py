"""Reads a CSV with pandas, groups, pivots, joins, resamples and writes."""

import io

import pandas as pd

ORDERS = """order,date,customer,item,units,price
1,2026-01-03,ann,widget,12,2.5
2,2026-01-17,bob,widget,7,2.5
3,2026-01-21,ann,gadget,3,19.99
4,2026-02-02,cid,widget,40,2.25
5,2026-02-11,bob,gadget,1,19.99
6,2026-02-28,ann,sprocket,5,7.0
7,2026-03-05,cid,widget,,2.25
"""

orders = pd.read_csv(io.StringIO(ORDERS), parse_dates=["date"])
print(orders.shape, int(orders["units"].isna().sum()), list(orders.columns))
orders["total"] = orders["units"] * orders["price"]
print(orders.groupby("customer")["total"].agg(["count", "sum", "mean"]).round(2).to_string())
print(orders.pivot_table(index="item", columns="customer", values="units", aggfunc="sum", fill_value=0).to_string())
print(orders.set_index("date")["total"].resample("MS").sum().round(2).to_dict())
customers = pd.DataFrame({"customer": ["ann", "bob", "dee"], "city": ["Ulm", "Rom", "Oslo"]})
joined = orders.merge(customers, on="customer", how="left")
print(joined.loc[joined["city"].isna(), ["order", "customer"]].to_dict("records"))
print(orders.sort_values(["total", "order"], ascending=[False, True])["order"].head(3).tolist())
print(orders["item"].value_counts().to_dict(), orders["total"].quantile(0.5), round(orders["units"].corr(orders["price"]), 10))
print(orders.describe().loc[["mean", "std"], ["units", "price"]].round(6).to_string())
print(orders["item"].str.upper().str.slice(0, 3).unique().tolist(), orders["date"].dt.day_name().tolist()[:3])
orders["running"] = orders.groupby("customer")["total"].cumsum()
print(orders[["customer", "running"]].tail(3).to_csv(index=False), end="")
orders.to_csv("orders.csv", index=False, date_format="%Y-%m-%d")
orders.to_json("orders.json", orient="records", date_format="iso")
print(open("orders.csv").readline().strip(), len(pd.read_json("orders.json")))
