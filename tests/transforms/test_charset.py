"""Which characters the bytes of a page stand for."""
# ruff: noqa: RUF001 - letters of many languages

import pytest

from any2ds.transforms.steps._charset import decoded

ENGLISH = "Some words of English stand before it, as they do in many pages of the web. "
# What stands there, and the charsets that such pages are in.
TEXTS = {
    "English": ("A naïve approach to the problem is to try it. ", ("cp1252", "iso8859_1")),
    "prices": ("It costs £5 and ½ more, ©2005. ", ("cp1252", "iso8859_1")),
    "quotes": ("He said “hello” — it’s fine… ", ("cp1252",)),
    "one word": ("The café is open. ", ("cp1252",)),
    "French": ("Le café où nous étions naïfs était fermé, l'élève à côté a reçu une leçon. ", ("cp1252",)),
    "German": ("Über die Größe der Häuser in München läßt sich streiten. ", ("cp1252",)),
    "Spanish": ("¿Dónde está el niño? El año pasado comió mucho jamón. ", ("cp1252",)),
    "Portuguese": ("A informação não é só para vocês; as ações são públicas. ", ("cp1252",)),
    "Swedish": ("Hur mår du på den här fina dagen? Jag går över gatan. ", ("cp1252",)),
    "Danish": ("Rødgrød med fløde på en bænk i København. ", ("cp1252",)),
    "Polish": ("Książka leży na półce, gdzie są dzieci i łąka, żółw i gęś. ", ("cp1250", "iso8859_2")),
    "Czech": ("Příliš žluťoučký kůň úpěl ďábelské ódy. ", ("cp1250", "iso8859_2")),
    "Hungarian": ("Árvíztűrő tükörfúrógép, a magyar nyelv szép és nehéz. ", ("cp1250", "iso8859_2")),
    "Turkish": ("Türkiye'de yaşayan insanların çoğu İstanbul'da oturuyor, değil mi? ", ("cp1254",)),
    "Lithuanian": ("Šiandien gražus oras, o žmonės eina į mišką su šunimis. ", ("cp1257",)),
    "Russian": ("Съешь же ещё этих мягких булок, да выпей чаю. ", ("cp1251", "koi8_r")),
    "Greek": ("Ξεσκεπάζω την ψυχοφθόρα βδελυγμία και πίνω καφέ. ", ("cp1253",)),
    "Japanese": ("いろはにほへと散りぬるを、日本語の文章です。", ("cp932", "euc_jp")),
    "Chinese": ("今天的天气非常好，我们去公园。", ("gb18030",)),
    "Chinese of Taiwan": ("今天的天氣非常好，我們去公園。", ("big5",)),
    "Korean": ("키스의 고유조건은 입술끼리 만나야 하고. ", ("cp949",)),
    "Thai": ("เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ", ("cp874",)),
}


# Without a declaration these are taken for charsets that differ in a few letters, or for windows-1252.
UNDETECTED = {
    ("Polish", "iso8859_2"),
    ("Czech", "iso8859_2"),
    ("Hungarian", "cp1250"),
    ("Hungarian", "iso8859_2"),
    ("Turkish", "cp1254"),
    ("Lithuanian", "cp1257"),
    ("Japanese", "euc_jp"),
}
PAIRS = [(name, one) for name, (_, all) in TEXTS.items() for one in all]
LABELS = {"iso8859_1": "iso-8859-1", "iso8859_2": "iso-8859-2", "koi8_r": "KOI8-R", "cp932": "Shift_JIS",
          "euc_jp": "euc-jp", "cp949": "euc-kr", "cp874": "TIS-620", "gb18030": "gb2312"}  # fmt: skip


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("before", ["", ENGLISH])
@pytest.mark.parametrize(("name", "charset"), [pair for pair in PAIRS if pair not in UNDETECTED])
def test_a_page_that_does_not_declare_its_charset(name: str, charset: str, before: str, times: int) -> None:
    page = f"<html><head><title>a page</title></head><body><p>{before}{TEXTS[name][0] * times}</p></body></html>"
    assert decoded(page.encode(charset)) == page


@pytest.mark.parametrize(("name", "charset"), PAIRS)
def test_a_page_that_declares_its_charset(name: str, charset: str) -> None:
    label = LABELS.get(charset, charset.replace("cp", "windows-"))
    page = f'<html><head><meta charset="{label}"></head><body><p>{TEXTS[name][0]}</p></body></html>'
    assert decoded(page.encode(charset)) == page


def test_noise_is_text_of_some_kind() -> None:
    for noise in (bytes(range(256)), b"<html>" + bytes(range(128, 256)) * 50, b"<p>\x81\x8d\x8f\x90\x9d</p>"):
        assert isinstance(decoded(noise), str)
