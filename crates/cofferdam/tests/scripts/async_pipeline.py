"""asyncio without a network: gathering, a queue of work, groups, timeouts, cancelling, events."""

import asyncio


async def fetch(name, delay):
    await asyncio.sleep(delay)
    if name == "bad":
        raise ValueError(name)
    return name.upper()


async def impatient():
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        print("timed out")


async def worker(number, queue, results):
    while True:
        item = await queue.get()
        try:
            await asyncio.sleep(0.001 * (3 - number))
            results.append(item * item)
        finally:
            queue.task_done()


async def numbers(upto):
    for number in range(upto):
        await asyncio.sleep(0)
        yield number


async def main():
    print(asyncio.current_task().get_name())
    print(await asyncio.gather(fetch("slow", 0.02), fetch("quick", 0.001), fetch("bad", 0.005), return_exceptions=True))

    queue, results = asyncio.Queue(maxsize=3), []
    workers = [asyncio.create_task(worker(number, queue, results)) for number in range(2)]
    for item in range(8):
        await queue.put(item)
    await queue.join()
    for task in workers:
        task.cancel()
    print(sorted(results), [type(e).__name__ for e in await asyncio.gather(*workers, return_exceptions=True)])

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch("good", 0.5))
            group.create_task(fetch("bad", 0.001))
    except* ValueError as errors:
        print("group:", [str(error) for error in errors.exceptions])

    for attempt in (asyncio.wait_for(asyncio.sleep(9), 0.01), fetch("fine", 0)):
        try:
            print(await attempt)
        except asyncio.TimeoutError:
            print("too slow")
    await asyncio.create_task(impatient())

    event, order = asyncio.Event(), []

    async def waiter(name):
        await event.wait()
        order.append(name)

    tasks = [asyncio.create_task(waiter(name)) for name in "abc"]
    asyncio.get_running_loop().call_later(0.005, event.set)
    done, pending = await asyncio.wait(tasks)
    print(order, len(done), len(pending))

    semaphore, most, now = asyncio.Semaphore(2), 0, 0

    async def limited():
        nonlocal most, now
        async with semaphore:
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

    await asyncio.gather(*(limited() for _ in range(6)))
    print("at most", most, "at a time;", [number async for number in numbers(4)])
    for first in asyncio.as_completed([fetch("second", 0.01), fetch("first", 0.001)]):
        print(await first)


asyncio.run(main())
