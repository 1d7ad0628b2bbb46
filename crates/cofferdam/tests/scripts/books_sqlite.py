"""A database in memory: tables, joins, windows, transactions, a function of our own, and one on disk."""

import sqlite3

with sqlite3.connect(":memory:") as db:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.executescript("""
        CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
        CREATE TABLE book (
            id INTEGER PRIMARY KEY, author INTEGER NOT NULL REFERENCES author(id),
            title TEXT, year INTEGER CHECK (year > 1400), price REAL);
        CREATE INDEX book_year ON book(year);
    """)
    db.executemany("INSERT INTO author VALUES (?, ?)", [(1, "Austen"), (2, "Borges"), (3, "Calvino")])
    db.executemany(
        "INSERT INTO book (author, title, year, price) VALUES (:author, :title, :year, :price)",
        [
            dict(author=1, title="Emma", year=1815, price=8.5),
            dict(author=1, title="Persuasion", year=1817, price=7.25),
            dict(author=2, title="Ficciones", year=1944, price=12.0),
            dict(author=3, title="Le città invisibili", year=1972, price=None),
        ],
    )
    for row in db.execute("""
        SELECT name, count(*) AS books, min(year) AS first, round(total(price), 2) AS worth
        FROM author JOIN book ON book.author = author.id GROUP BY author.id ORDER BY books DESC, name"""):
        print(dict(row))
    for row in db.execute("""
        SELECT title, rank() OVER (ORDER BY price DESC NULLS LAST) AS place,
               sum(price) OVER (ORDER BY year ROWS UNBOUNDED PRECEDING) AS so_far FROM book ORDER BY year"""):
        print(tuple(row))
    db.create_function("shout", 1, lambda text: text.upper() + "!", deterministic=True)
    print(db.execute("SELECT group_concat(shout(title), ' ') FROM (SELECT title FROM book ORDER BY id)").fetchone()[0])
    try:
        with db:
            db.execute("DELETE FROM book WHERE author = 1")
            db.execute("INSERT INTO book (author, title, year) VALUES (9, 'nobody', 2000)")
    except sqlite3.IntegrityError as error:
        print("rolled back:", error)
    print(db.execute("SELECT count(*) FROM book").fetchone()[0])
    print(db.execute("SELECT json_extract('{\"a\": [1, 2, {\"b\": 3}]}', '$.a[2].b'), typeof(1.0), 7 / 2").fetchone()[:])

disk = sqlite3.connect("books.db")
disk.execute("CREATE TABLE note (text)")
disk.execute("INSERT INTO note VALUES ('kept')")
disk.commit()
disk.close()
print(sqlite3.connect("books.db").execute("SELECT * FROM note").fetchall())
